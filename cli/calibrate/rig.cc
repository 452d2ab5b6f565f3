#include "cli/calibrate/rig.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "cli/thread_ranks.h"
#include "src/base/statistics.h"
#include "src/ops/common/bodies.h"
#include "src/runtime/state.h"
#include "src/spec/expand.h"
#if defined(OVERLACE_HAS_CUDA)
#include "src/runtime/backend/cuda_peer/nvml.h"
#include "src/runtime/backend/cuda_peer/pushes.h"
#endif

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;
using tuning::guarded;

/// Which of the three blocks an argument is bound to.
size_t place_of(const std::string& name) {
  const char first = name.front();
  return first == 'A' || first == 'X' ? 0 : first == 'B' || first == 'Z' || first == 'W' ? 1 : 2;
}

}  // namespace

Rig::Rig(Bootstrap& bootstrap, const RuntimeOptions& options, size_t argument_bytes)
    : runtime_(std::make_unique<Runtime>(Runtime::open(bootstrap, options))), argument_bytes_(argument_bytes) {
  if (!is_gpu()) pin_to_core(static_cast<size_t>(bootstrap.rank()));
  channel_ = &team().channel(is_gpu() ? StreamRef::cuda(nullptr) : StreamRef::cpu());
  for (const char* name : {"first operand", "second operand", "result"})
    memory_.push_back(runtime_->heap().alloc(argument_bytes, 4096, name));
  team().barrier();
  for (const SymBuffer& one : memory_) fill(one);
  team().barrier();
}

Rig::~Rig() = default;

void Rig::close() {
  for (auto it = memory_.rbegin(); it != memory_.rend(); ++it) runtime_->heap().free(*it);
  memory_.clear();
  runtime_->close();
}

/// Sums of four uniform numbers: data of low entropy would run faster than real ones. As fp32; read as bf16 or fp16 its
/// halves are spread as widely.
void Rig::fill(const SymBuffer& buffer) {
  constexpr size_t kFloats = 64 * 1024;
  std::vector<float> values(kFloats);
  uint64_t state = 0x9E3779B97F4A7C15u * (static_cast<uint64_t>(team().rank()) + 1) + buffer.offset;
  const auto uniform = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(state >> 40) * 0x1p-24f - 0.5f;
  };
  for (float& value : values) value = uniform() + uniform() + uniform() + uniform();
  if (is_gpu()) {  // two bf16 in each
    for (float& value : values) {
      uint32_t high = 0, low = 0;
      const float second = uniform() + uniform() + uniform() + uniform();
      std::memcpy(&high, &value, sizeof high);
      std::memcpy(&low, &second, sizeof low);
      high = (high & 0xffff0000u) | low >> 16;
      std::memcpy(&value, &high, sizeof value);
    }
  }
  auto* to = static_cast<char*>(team().local_ptr(buffer));
  const size_t piece = kFloats * sizeof(float);
  for (size_t at = 0; at < buffer.bytes; at += piece)
    runtime_->state().backend->copy(to + at, values.data(), std::min(piece, buffer.bytes - at)).or_throw();
}

Result<const exec::Bindings*> Rig::bindings(const spec::Schedule& schedule) {
  const auto found = bindings_.find(&schedule);
  if (found != bindings_.end()) return &found->second;
  const Result<spec::Expansion> expansion = spec::expand(schedule, team().rank(), team().size());
  if (!expansion.ok()) return expansion.status();
  exec::Bindings out;
  for (size_t i = 0; i < schedule.buffers.size(); ++i) {
    const spec::Buffer& buffer = schedule.buffers[i];
    if (buffer.space != spec::Space::argument) continue;
    const std::vector<int64_t>& shape = expansion->buffer_shapes[i];
    if (shape.size() != 2) return base::error(Errc::internal, "calibrate: argument {} is no matrix", buffer.name);
    TensorView view =
        TensorView::contiguous(team().local_ptr(memory_[place_of(buffer.name)]), buffer.dtype, {shape[0], shape[1]});
    if (static_cast<size_t>(view.numel()) * dtype_bytes(buffer.dtype) > argument_bytes_)
      return base::error(Errc::internal, "calibrate: argument {} {} is larger than {} bytes", buffer.name, view.shape(),
                         argument_bytes_);
    out[buffer.name] = view;
  }
  return &(bindings_[&schedule] = std::move(out));
}

Status Rig::run(const spec::Schedule& schedule, int iterations) {
  const Result<const exec::Bindings*> bound = bindings(schedule);
  if (!bound.ok()) return bound.status();
  for (int i = 0; i < iterations; ++i)
    OVERLACE_TRY(exec::run(*channel_, schedule, "calibrate", **bound, ops::bodies(*channel_)));
  return {};
}

Status Rig::push(Probe probe, int ctas, int64_t bytes, int iterations) {
  const int to = probe == Probe::memory ? team().rank() : (team().rank() + 1) % team().size();
  const SymBuffer &from = memory_.front(), &into = memory_.back();
  if (static_cast<size_t>(bytes) > argument_bytes_)
    return base::error(Errc::internal, "calibrate: {} of {} bytes, the memory has {}", name_of(probe), bytes,
                       argument_bytes_);
  for (int i = 0; i < iterations; ++i) {
#if defined(OVERLACE_HAS_CUDA)
    if (is_gpu()) {
      namespace cp = runtime::cuda_peer;
      cp::Push push{.by = probe == Probe::tma ? cp::Push::By::bulk : cp::Push::By::store, .ctas = ctas};
      push.first = to == team().rank() ? 0 : 1;
      push.offset = into.offset;
      push.src = team().local_ptr(from);
      push.bytes = static_cast<uint64_t>(bytes);
      OVERLACE_TRY(cp::launch_push(runtime_->device(), channel_->stream(), channel_->pod(), push));
      continue;
    }
#endif
    if (probe == Probe::tma || ctas != 1)
      return base::error(Errc::not_supported, "calibrate: {} by {} CTAs on CPU ranks, wanted 1", name_of(probe), ctas);
    std::memcpy(team().peer_ptr(into, to), team().local_ptr(from), static_cast<size_t>(bytes));
  }
  return {};
}

Result<Rig::Duty> Rig::duty(const spec::Schedule& schedule, double share, double seconds) {
  const auto call_us = [&]() -> Result<double> {
    const double begin = now_us();
    OVERLACE_TRY(run(schedule, 1));
    OVERLACE_TRY(synchronize());
    return now_us() - begin;
  };
#if defined(OVERLACE_HAS_CUDA)
  const runtime::cuda_peer::Nvml nvml(runtime_->device());  // takes long
#endif
  OVERLACE_TRY(run(schedule, 1));  // prepares
  OVERLACE_TRY(synchronize());
  const Result<double> mine = call_us();
  if (!mine.ok()) return mine.status();
  const auto slowest = max_over_ranks({*mine});
  if (!slowest.ok()) return slowest.status();
  // As many on all ranks: calls are counted.
  const int times = std::max(4, static_cast<int>(seconds * 1e6 * share / slowest->front()));
  std::vector<double> late;
  for (int i = 0; i < times; ++i) {
    const Result<double> us = call_us();
    if (!us.ok()) return us.status();
    if (2 * i >= times) late.push_back(*us);
    if (share < 1) std::this_thread::sleep_for(std::chrono::duration<double, std::micro>(*us * (1 / share - 1)));
  }
  Duty out;
  OVERLACE_TRY(run(schedule, 1));  // so that the GPU works while it is asked
#if defined(OVERLACE_HAS_CUDA)
  if (is_gpu()) {
    if (const auto clocks = nvml.clocks()) {
      out.sm_mhz = clocks->sm_mhz;
      out.watts = clocks->watts;
    }
  }
#endif
  OVERLACE_TRY(synchronize());
  const auto us = max_over_ranks({base::median(late)});
  if (!us.ok()) return us.status();
  out.us = us->front();
  return out;
}

Result<std::vector<std::string>> Rig::link_texts() {
  std::string mine;
#if defined(OVERLACE_HAS_CUDA)
  if (is_gpu()) {
    namespace cp = runtime::cuda_peer;
    const cp::Nvml nvml(runtime_->device());
    mine = nvml.bus_id();
    for (const cp::NvLink& link : nvml.links())
      mine += link.to == cp::NvLink::To::nvswitch ? " switch" : link.bus_id.empty() ? " ?" : " " + link.bus_id;
  }
#endif
  std::vector<std::string> out;
  const Status status = guarded([&] {
    for (const Bytes& theirs : team().exchange({reinterpret_cast<const std::byte*>(mine.data()), mine.size()}))
      out.emplace_back(reinterpret_cast<const char*>(theirs.data()), theirs.size());
  });
  if (!status.ok()) return status;
  return out;
}

Result<double> Rig::queue_us(const spec::Schedule& schedule) {
  OVERLACE_TRY(run(schedule, 1));
  OVERLACE_TRY(synchronize());
  OVERLACE_TRY(barrier());
  const double begin = now_us();
  OVERLACE_TRY(run(schedule, 1));
  const double mine = now_us() - begin;
  OVERLACE_TRY(synchronize());
  const auto slowest = max_over_ranks({mine});
  if (!slowest.ok()) return slowest.status();
  return slowest->front();
}

Result<double> Rig::skew_us() {
  OVERLACE_TRY(barrier());
  const double now = now_us();  // ranks of one host have one clock
  const auto ends = max_over_ranks({now, -now});
  if (!ends.ok()) return ends.status();
  return (*ends)[0] + (*ends)[1];
}

Status Rig::synchronize() {
  return guarded([&] { runtime_->synchronize(); });
}
Status Rig::barrier() {
  return guarded([&] { team().barrier(); });
}

}  // namespace overlace::cli
