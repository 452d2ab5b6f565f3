// NCCL's host functions, opened at run time: the copy that is already in the process first, so that a program has one.
#pragma once

#include <nccl.h>

#include <string>

#include "src/base/status.h"

namespace overlace::runtime::nccl {

inline constexpr int kOldestVersion = 21900;  // 2.19: configurations with CTA limits, split communicators

struct Library {
  decltype(&::ncclGetVersion) ncclGetVersion = nullptr;
  decltype(&::ncclGetUniqueId) ncclGetUniqueId = nullptr;
  decltype(&::ncclCommInitRankConfig) ncclCommInitRankConfig = nullptr;
  decltype(&::ncclCommSplit) ncclCommSplit = nullptr;
  decltype(&::ncclCommGetAsyncError) ncclCommGetAsyncError = nullptr;
  decltype(&::ncclCommFinalize) ncclCommFinalize = nullptr;
  decltype(&::ncclCommDestroy) ncclCommDestroy = nullptr;
  decltype(&::ncclCommAbort) ncclCommAbort = nullptr;
  decltype(&::ncclGetErrorString) ncclGetErrorString = nullptr;
  decltype(&::ncclAllGather) ncclAllGather = nullptr;
  decltype(&::ncclReduceScatter) ncclReduceScatter = nullptr;
  decltype(&::ncclAllReduce) ncclAllReduce = nullptr;
  decltype(&::ncclBroadcast) ncclBroadcast = nullptr;
  decltype(&::ncclReduce) ncclReduce = nullptr;
  decltype(&::ncclSend) ncclSend = nullptr;
  decltype(&::ncclRecv) ncclRecv = nullptr;
  decltype(&::ncclGroupStart) ncclGroupStart = nullptr;
  decltype(&::ncclGroupEnd) ncclGroupEnd = nullptr;
  int version = 0;  // 22809

  std::string version_text() const;  // "2.28.9"
};

/// Opened once. not_supported with the loader's reason, version_mismatch with both versions. The environment, which the
/// program's other communicators read too, stays as it is.
base::Result<const Library*> library();

}  // namespace overlace::runtime::nccl
