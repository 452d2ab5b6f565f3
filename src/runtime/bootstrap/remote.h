// How ranks on several hosts find each other: over TCP where the launcher says where rank 0 is, else over MPI.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "overlace/bootstrap.h"
#include "src/base/status.h"

namespace overlace::runtime {

/// Rank 0 serves on one of 16 ports of `host` that follow from `job`, the same text on all ranks; who comes must know
/// it. bootstrap naming who is missing.
base::Result<std::unique_ptr<Bootstrap>> tcp_bootstrap(const std::string& host, const std::string& job, int rank,
                                                       int size, int64_t timeout_ms);
/// The first of the 16.
int first_port(const std::string& job);

/// Rank and size must be MPI's.
base::Result<std::unique_ptr<Bootstrap>> mpi_bootstrap(int rank, int size, int64_t timeout_ms);

}  // namespace overlace::runtime
