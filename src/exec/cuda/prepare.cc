// What the GPUs' executor does before the first call of a program.
#include <algorithm>
#include <iterator>
#include <set>

#include "src/exec/cuda/executor.h"
#include "src/exec/cuda/inputs.h"
#include "src/runtime/backend/cuda_peer/state.h"

namespace overlace::exec {
namespace {

bool writes_shared(const Program& program, const spec::Task& task) {
  return std::any_of(task.writes.begin(), task.writes.end(), [&](const spec::Region& region) {
    const std::vector<spec::Buffer>& all = program.schedule.buffers;
    return std::any_of(all.begin(), all.end(), [&](const spec::Buffer& buffer) {
      return buffer.name == region.buffer && buffer.space == spec::Space::symmetric;
    });
  });
}

}  // namespace

/// NOTE: by cudaMalloc, as NCCL reads and writes workspaces, between GPUs of one process directly, which memory of a
/// pool does not allow. cudaFree waits for all that runs on the device, so what is given back is kept for the next
/// programs.
base::Status CudaExecutor::allocate(size_t bytes, const char* name, void** out) {
  DeviceScope scope(device_);
  size_t size = bytes;
  if (const auto spare = spare_.lower_bound(bytes); spare != spare_.end() && spare->first / 2 <= bytes) {
    size = spare->first;
    *out = spare->second;
    spare_bytes_ -= size;
    spare_.erase(spare);
  } else {
    cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaErrorMemoryAllocation && !spare_.empty()) {
      (void)cudaGetLastError();
      free_spare(0);
      code = cudaMalloc(out, bytes);
    }
    if (code != cudaSuccess) {
      (void)cudaGetLastError();
      return base::error(Errc::out_of_memory, "workspace of {}: cudaMalloc of {} bytes: {}", name, bytes,
                         cudaGetErrorString(code));
    }
  }
  workspaces_.emplace(*out, size);
  used_bytes_ += size;
  return {};
}

void CudaExecutor::deallocate(void* memory) {
  constexpr size_t kMostSpare = size_t{256} << 20;
  DeviceScope scope(device_);
  const auto found = workspaces_.find(memory);
  spare_.emplace(found->second, memory);
  spare_bytes_ += found->second;
  used_bytes_ -= found->second;
  workspaces_.erase(found);
  free_spare(kMostSpare);
}

/// The largest go until at most so many bytes are left.
void CudaExecutor::free_spare(size_t most) {
  while (spare_bytes_ > most) {
    const auto largest = std::prev(spare_.end());
    (void)cudaFree(largest->second);
    spare_bytes_ -= largest->first;
    spare_.erase(largest);
  }
}

/// Every task that only computes, once, on whatever the memory holds: the run writes all of it again. The first use of
/// a GEMM loads kernels and allocates, which must not meet a kernel that waits, here or on another GPU of this process.
/// What peers may still read of an earlier call is left alone.
base::Status CudaExecutor::rehearse(Program& program, const Bindings& bindings, const Bodies& bodies) {
  OVERLACE_TRY(check_bindings(program, bindings));
  const Call call{.program = program, .bindings = bindings, .bodies = bodies, .copies_out = {}};
  base::Status status;
  bool has_run = false;
  for (const spec::Instance& instance : program.expansion.instances) {
    const spec::Task& task = program.task(instance);
    const bool computes = task.kind == spec::Kind::gemm || task.kind == spec::Kind::reduce;
    if (!computes || is_part(task) || (program.shared->calls > 0 && writes_shared(program, task))) continue;
    if (status.ok()) status = execute(call, instance, stream_);
    has_run = true;
  }
  if (!has_run) return status;
  // On failure too: the memory goes, and may be somebody else's soon.
  const base::Status ended = cuda_status(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return status.ok() ? ended : status;
}

bool CudaExecutor::prepares_beside_calls(const Program& program, const Bodies& bodies) const {
  const std::vector<spec::Instance>& all = program.expansion.instances;
  const bool is_one_kernel = std::all_of(
      all.begin(), all.end(), [&](const spec::Instance& instance) { return is_part(program.task(instance)); });
  if (!is_one_kernel || program.workspace_bytes != 0 || !bodies.kernel.is_loaded) return false;
  DeviceScope scope(device_);
  return bodies.kernel.is_loaded(channel_, program.schedule);
}

base::Status CudaExecutor::prepare(Program& program, const Bindings& bindings, const Bodies& bodies) {
  DeviceScope scope(device_);
  OVERLACE_TRY(fill_inputs(program));
  if (program.shared->cells == nullptr) {
    base::Result<std::shared_ptr<Cells>> cells = make_cells(program, team_);
    if (!cells.ok()) return cells.status();
    program.shared->cells = std::move(cells).value();
  }
  const std::vector<spec::Instance>& instances = program.expansion.instances;
  auto prepared = std::make_shared<Prepared>(instances.size());
  OVERLACE_TRY(prepare_steps(program, *prepared));
  std::set<spec::Lane> copy_lanes;
  if (prepared->net != nullptr) copy_lanes.insert(kNetLane);
  for (size_t i = 0; i < instances.size(); ++i) {
    const spec::Instance& instance = instances[i];
    if (!is_sm(instance.lane)) copy_lanes.insert(instance.lane);
    for (int dep : instance.deps) {
      const auto d = static_cast<size_t>(dep);
      const bool is_other = stream_of(instances[d].lane) != stream_of(instance.lane) || prepared->last_round[d] >= 0;
      if (is_other) OVERLACE_TRY(prepared->done.make(d));
    }
    if (is_part(program.task(instance))) continue;
    for (const spec::ResolvedWait& wait : instance.waits) prepared->has_previous |= wait.previous;
  }
  OVERLACE_TRY(prepare_kernel(program, bodies, *prepared));
  prepared->copy_lanes.assign(copy_lanes.begin(), copy_lanes.end());
  for (const spec::Lane& lane : prepared->copy_lanes) (void)stream_of(lane);
  prepared->lanes.grow(copy_lanes.size() + 1);
  for (size_t i = 0; i <= copy_lanes.size(); ++i) OVERLACE_TRY(prepared->lanes.make(i));
  program.prepared = prepared;
  return rehearse(program, bindings, bodies);
}

base::Status CudaExecutor::prepare_steps(const Program& program, Prepared& prepared) {
  const std::vector<int> groups = groups_of(team_);
  if (!spec::needs_timetable(program.schedule, program.expansion, groups)) {
    prepared.steps = spec::issue_order(program.expansion, program.lanes);
    return {};
  }
  const base::Result<std::vector<spec::Expansion>> all = spec::expand_all(program.schedule, program.ranks());
  if (!all.ok()) return all.status();
  base::Result<spec::Timetable> timetable = spec::make_timetable(program.schedule, *all, groups, program.rank());
  if (!timetable.ok()) return timetable.status();
  prepared.steps = std::move(timetable->steps);
  prepared.last_round = std::move(timetable->last_round);
  prepared.last_data = timetable->last_data;
  if (timetable->rounds.empty()) return {};
  OVERLACE_TRY(prepared.sent.make(0));
  for (const spec::Round& round : timetable->rounds)
    for (const spec::Message& m : round)
      if (m.from == program.rank()) OVERLACE_TRY(prepared.ready.make(static_cast<size_t>(m.instance)));
  base::Result<std::unique_ptr<NetRounds>> net = NetRounds::make(program, team_, std::move(timetable->rounds));
  if (!net.ok()) return net.status();
  prepared.net = std::move(net).value();
  return {};
}

base::Status CudaExecutor::prepare_kernel(Program& program, const Bodies& bodies, Prepared& prepared) {
  const auto first = std::find_if(prepared.steps.begin(), prepared.steps.end(), [&](const spec::Step& step) {
    return step.instance >= 0 && is_part(program.task(program.expansion.instances[static_cast<size_t>(step.instance)]));
  });
  if (first == prepared.steps.end()) return {};
  if (!bodies.kernel.launch || !bodies.kernel.copy_out) {
    return base::error(Errc::not_supported, "schedule {}: operator {} brings no fused kernel", program.schedule.family,
                       program.schedule.op);
  }
  prepared.first_part = first->instance;
  prepared.kernel.emplace(kernel_context(channel_, program));
  prepared.kernel->of_schedule = &prepared.kernel_state;
  prepared.kernel->of_channel = &kernels_state_;
  OVERLACE_TRY(make_counters(program, prepared));
  OVERLACE_TRY(bodies.kernel.prepare(*prepared.kernel));
  return count_adds(program, bodies, prepared);
}

base::Status CudaExecutor::make_counters(const Program& program, Prepared& prepared) {
  const uint32_t count = program.first_counter.back();
  if (count == 0) return {};
  base::Result<node::StreamWords> words =
      node::cuda_peer_state(*team_.runtime().state().backend).stream_words(count, "counters of a schedule");
  if (!words.ok()) return words.status();
  prepared.counters = std::move(*words);
  prepared.kernel->counters = {.words = prepared.counters.data(), .count = count, .number = 0};
  return {};
}

/// What its kernel adds to each counter, all of which is waited for; and where they are set to 0 again.
base::Status CudaExecutor::count_adds(const Program& program, const Bodies& bodies, Prepared& prepared) {
  const auto name = [&](int signal) { return program.schedule.signals[static_cast<size_t>(signal)].name; };
  prepared.full.assign(program.first_counter.back(), 0);
  std::set<spec::Lane> waiting;
  for (const spec::Instance& instance : program.expansion.instances) {
    for (const spec::ResolvedSet& set : instance.sets) {
      if (!program.is_counter(set.signal)) continue;
      if (!is_part(program.task(instance)) || !bodies.kernel.counted)
        return base::error(Errc::not_supported, "{} adds to {}[{}], of scope device; wanted: adds by a kernel, on GPUs",
                           instance.id(program.schedule), name(set.signal), set.slot);
      prepared.full[program.counter(set.signal, set.slot)] =
          bodies.kernel.counted(*prepared.kernel, name(set.signal), set.slot);
    }
    for (const spec::ResolvedWait& wait : instance.waits) {
      if (!program.is_counter(wait.signal)) continue;
      waiting.insert(instance.lane);
      if (const int64_t adds = program.expansion.adds(wait.signal, wait.slot, wait.from); wait.at_least != adds)
        return base::error(Errc::not_supported, "{} waits for {} adds to {}[{}]; wanted: all {}, on GPUs",
                           instance.id(program.schedule), wait.at_least, name(wait.signal), wait.slot, adds);
    }
  }
  if (waiting.size() == 1 && !is_sm(*waiting.begin())) prepared.emptying = *waiting.begin();
  return {};
}

}  // namespace overlace::exec
