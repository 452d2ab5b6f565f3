// How ranks on several hosts find each other: over TCP where the launcher says where rank 0 is, else over MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "overlace/bootstrap.h"
#include "src/base/status.h"

namespace overlace::runtime {

/// What all ranks that meet over TCP were told.
struct TcpMeeting {
  std::string host;    // of rank 0, by name or number
  std::string job;     // differs between jobs; no secret
  std::string secret;  // OVERLACE_SECRET
  std::string listen;  // OVERLACE_LISTEN; empty: rank 0 listens on the address of `host`
};

/// Rank 0 serves on one of 16 ports that follow from the job; who comes must know the secret. bootstrap naming who is
/// missing; invalid_argument for a secret that is none.
base::Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const TcpMeeting& meeting, int rank, int size,
                                                       int64_t timeout_ms);
/// The first of the 16.
int first_port(const std::string& job);

/// Rank and size must be MPI's.
base::Result<std::unique_ptr<Bootstrap>> mpi_bootstrap(int rank, int size, int64_t timeout_ms);

}  // namespace overlace::runtime
