// What the plug-in offers: liboverlace_mpi_<library>.so, the only code that is linked with an MPI. Plain C types, so
// that builds for several MPIs are interchangeable.
#pragma once

#include <cstdint>

extern "C" {

/// Functions return 0 or an MPI error code, which `text` words. One thread makes all calls. Messages are bytes between
/// ranks of a communicator of the plug-in's own; one source's messages arrive in order.
struct OverlaceMpiTable {
  static constexpr uint32_t kAbi = 1;
  uint32_t abi;
  const char* name;     // "openmpi"
  const char* version;  // "4.1.4", of the library that is loaded

  /// Starts MPI unless the caller has. Waits for all processes of the job.
  int (*open)(int* rank, int* size);
  /// 0: MPI was started by somebody else, at a level where other threads must not call it meanwhile.
  int (*may_use_threads)();
  int (*send)(int to, const void* data, int bytes, uint64_t* request);
  /// The next message of any source: whether there is one, its source and size, and a handle for `receive`.
  int (*probe)(int* is_there, int* from, int* bytes, uint64_t* message);
  int (*receive)(uint64_t message, void* data, int bytes, uint64_t* request);
  int (*test)(uint64_t* request, int* is_done);
  /// Ends MPI if `open` started it. Waits for all processes of the job.
  int (*close)();
  void (*text)(int code, char* to, int bytes);
};

using OverlaceMpiOpen = const OverlaceMpiTable* (*)();
}

namespace overlace::runtime::mpi {

inline constexpr char kTableFunction[] = "overlace_mpi_table";
/// In the order in which they are tried where the environment names none.
inline constexpr const char* kLibraries[] = {"openmpi", "mpich"};

}  // namespace overlace::runtime::mpi
