#include "cli/calibrate/host_link.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "src/base/env.h"
#include "src/base/timing.h"

namespace overlace::cli {
namespace {

/// Microseconds of one of `count` copies behind each other.
base::Result<double> burst_us(gnn::LoaderDevice& device, std::byte* to, const std::byte* from, int64_t bytes,
                              int64_t count) {
  OVERLACE_TRY(device.drain());
  const double begin = base::steady_us();
  for (int64_t i = 0; i < count; ++i) OVERLACE_TRY(device.copy(gnn::Lane::transfer, to, from, bytes, bytes, 1));
  OVERLACE_TRY(device.record(gnn::Lane::transfer, 0));
  const auto is_done = device.reached(0, base::env().timeout_s * 1000);
  if (!is_done.ok()) return is_done.status();
  if (!*is_done)
    return base::error(Errc::timeout, "{} copies of {} bytes to a GPU were not done, wanted within {} s", count, bytes,
                       base::env().timeout_s);
  return (base::steady_us() - begin) / static_cast<double>(count);
}

}  // namespace

base::Result<spec::Curve> time_host_link(std::unique_ptr<gnn::LoaderDevice> given, std::span<const int64_t> sizes) {
  constexpr int kBursts = 5;
  std::vector<std::byte> memory(static_cast<size_t>(sizes.back()), std::byte{1});
  const std::unique_ptr<gnn::LoaderDevice> device = std::move(given);  // goes before the memory that it has pinned
  OVERLACE_TRY(device->enter());
  OVERLACE_TRY(device->pin(memory));
  const auto to = device->allocate(sizes.back());
  if (!to.ok()) return to.status();
  OVERLACE_TRY(device->make_events(1));
  spec::Curve out;
  out.source = spec::Source::measured;
  double last = 0;
  for (const int64_t bytes : sizes) {
    const int64_t count = std::clamp<int64_t>(sizes.back() / bytes, 4, 256);
    double best = std::numeric_limits<double>::max();
    for (int burst = 0; burst < kBursts; ++burst) {
      const auto us = burst_us(*device, *to, memory.data(), bytes, count);
      if (!us.ok()) return us.status();
      best = std::min(best, *us);
    }
    last = std::max(best, last);  // noise alone makes more bytes faster
    out.points.push_back({static_cast<double>(bytes), last});
  }
  return out;
}

}  // namespace overlace::cli
