// S11 and S12: what this machine can do, and its limits.
#include <algorithm>
#include <map>

#include "src/base/format.h"
#include "src/spec/checks/graph.h"
#include "src/spec/fusable.h"
#include "src/spec/heap_layout.h"
#include "src/spec/names.h"
#include "src/spec/operators.h"

namespace overlace::spec {
namespace {

bool engine_does(Engine engine, Kind kind) {
  switch (kind) {
    case Kind::gemm:
    case Kind::tiles:
    case Kind::reduce:
    case Kind::pool:
      return engine == Engine::sm || engine == Engine::cpu;
    case Kind::copy:
      return engine == Engine::ce || engine == Engine::sm;
    case Kind::collective:
      return engine == Engine::sm || engine == Engine::nic || engine == Engine::ce;
    case Kind::barrier:
      return engine == Engine::sm;
    case Kind::host:
      return engine == Engine::cpu;
  }
  return false;
}

void check_engine(const Task& task, const Machine& machine, Findings* out) {
  if (!engine_does(task.engine, task.kind)) {
    return out->error("S11", task.id, 0,
                      base::format("engine {} cannot do a {}", name_of(task.engine), name_of(task.kind)));
  }
  if (task.engine == Engine::ce && !machine.has_copy_engine) {
    out->error("S11", task.id, 0, base::format("machine {} has no copy engine", machine.name));
  }
  if (machine.is_gpu && is_part(task) && !has_fused_kernels(machine)) {
    out->error("S11", task.id, 0,
               base::format("machine {} has {}, its kernel is for {} alone", machine.name,
                            capability_text(machine.compute_capability), capability_text(kFusedCapability)));
  }
  if (task.kind == Kind::collective && !machine.has_net_engine) {
    out->error("S11", task.id, 0, base::format("machine {} has no engine for collectives", machine.name));
  }
}

}  // namespace

void check_machine(const AllRanks& team, const Machine& machine, Findings* out) {
  const Schedule& schedule = *team.schedule;
  for (const Task& task : schedule.tasks) check_engine(task, machine, out);
  if (machine.is_gpu) {
    for (const Buffer& buffer : schedule.buffers) {
      if (buffer.dtype != DType::fp64) continue;
      out->error("S11", buffer.name, 0, base::format("machine {} computes no fp64", machine.name));
    }
  }

  const Expansion& first = team.ranks.front();
  const uint64_t bytes = heap_layout(schedule, first).bytes();
  if (bytes > static_cast<uint64_t>(machine.heap_bytes)) {
    out->error("S12", schedule.family, 0,
               base::format("symmetric buffers take {} bytes, the heap of {} has {}", bytes, machine.name,
                            machine.heap_bytes));
  }
  const int64_t words = first_words(schedule, first, Scope::system).back() * int64_t{team.depth()};
  if (words > machine.num_signal_ids) {
    out->error("S12", schedule.family, 0,
               base::format("{} signal words, {} has {}", words, machine.name, machine.num_signal_ids));
  }
  std::map<Lane, int64_t> sms;
  for (const Instance& in : first.instances) {
    const Params& params = schedule.tasks[static_cast<size_t>(in.task)].params;
    const auto it = params.find("sms");
    if (it == params.end() || !std::holds_alternative<int64_t>(it->second)) continue;
    sms[in.lane] = std::max(sms[in.lane], std::get<int64_t>(it->second));
  }
  int64_t total = 0;
  for (const auto& [lane, count] : sms) total += count;
  if (total > machine.sms) {
    out->error("S12", schedule.family, 0,
               base::format("the lanes ask for {} SMs together, {} has {}", total, machine.name, machine.sms));
  }
}

}  // namespace overlace::spec
