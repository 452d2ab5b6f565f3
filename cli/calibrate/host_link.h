// How fast pinned memory of the host is copied to a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "overlace/machine.h"
#include "src/base/status.h"
#include "src/gnn/pipeline/loader_device.h"

namespace overlace::cli {

/// Bytes -> time of one copy behind others, by the host's clock, the shortest of several bursts, for `sizes` that grow.
/// Takes memory for the largest on both sides, and gives it back. What the device refuses; timeout after
/// OVERLACE_TIMEOUT_S.
base::Result<spec::Curve> time_host_link(std::unique_ptr<gnn::LoaderDevice> device, std::span<const int64_t> sizes);

}  // namespace overlace::cli
