#include "src/study/losses.h"

#include <algorithm>

#include "src/sim/schedule/costs.h"
#include "src/spec/alike.h"
#include "src/spec/operators.h"

namespace overlace::study {
namespace {

using spec::Kind;
using spec::Load;

base::Result<PartTimes> parts_of_rank(const spec::Schedule& schedule, const spec::Expansion& expansion,
                                      const spec::Machine& machine) {
  PartTimes out;
  spec::GemmWork fused;
  for (const spec::Instance& in : expansion.instances) {
    const spec::Task& task = schedule.tasks[static_cast<size_t>(in.task)];
    if (task.kind == Kind::tiles) {
      if (task.combine == spec::Combine::add) continue;  // the same rows of C again, deeper in K
      const spec::Box &a = in.reads[0][0], &c = in.writes[0][0];
      const auto n = c.count[c.ndim - 1] * spec::columns_per_result(task.params);
      // Rows times columns in whole rows of N: groups of tiles are column groups.
      fused.n = std::get<int64_t>(schedule.params.at("N"));
      fused.k = std::get<int64_t>(schedule.params.at("K"));
      fused.m += a.count[0] * n;
      continue;
    }
    if (task.kind != Kind::gemm && task.kind != Kind::copy && task.kind != Kind::collective) continue;
    if (machine.is_gpu && task.wait_by == spec::WaitBy::kernel) continue;
    const base::Result<sim::Work> work = sim::work_of(schedule, expansion, in, machine);
    if (!work.ok()) return work.status();
    if (work->is_empty()) continue;
    if (task.kind == Kind::gemm) {
      out.products += work->kernels;
      out.product_us += machine.latency.launch_us.value + work->flow_us;
    } else if (work->link_bytes > 0) {
      out.transfers += std::max<int64_t>(work->copies, 1);
      out.transfer_us += work->start_us + work->flow_us + (task.kind == Kind::copy ? machine.copy.post_us.value : 0);
    }
  }
  if (fused.n > 0) {
    fused.m /= fused.n;
    ++out.products;
    out.product_us += machine.latency.launch_us.value + spec::gemm_cost(machine, fused).us;
  }
  return out;
}

}  // namespace

base::Result<PartTimes> part_times(const spec::Schedule& schedule, const spec::Machine& machine) {
  const auto given = schedule.params.find("G");
  const int64_t* team = given == schedule.params.end() ? nullptr : std::get_if<int64_t>(&given->second);
  const auto ranks = spec::expand_alike(schedule, team != nullptr ? static_cast<int>(*team) : machine.ranks);
  if (!ranks.ok()) return ranks.status();
  PartTimes out;
  for (const spec::Expansion& rank : *ranks) {
    const base::Result<PartTimes> one = parts_of_rank(schedule, rank, machine);
    if (!one.ok()) return one.status();
    if (one->product_us + one->transfer_us > out.product_us + out.transfer_us) out = *one;
  }
  return out;
}

double store_transfer_us(const spec::Machine& machine, double bytes, int peers, int64_t parts, int ctas) {
  const spec::Curve& store = machine.transport.store_GBps;
  if (store.empty()) return 0;
  const double each = machine.latency.launch_us.value + machine.latency.signal_us.value;
  return static_cast<double>(parts) * each + bytes * peers / store.at(ctas) * 1e-3;
}

Mutual mutual_slowdown(const spec::Machine& machine, std::string_view transport) {
  Mutual out;
  const auto factor = [&](Load slowed, Load by, double* value, bool* has) {
    for (const spec::Contention& c : machine.contention) {
      if (c.slowed != slowed || c.by != by) continue;
      *value *= c.factor.value;
      *has = true;
      if (c.factor.source == spec::Source::prior) out.source = spec::Source::prior;
    }
  };
  const Load load = transport == "ce" ? Load::ce_out : transport == "sm" ? Load::sm_copy : Load::epi_store;
  factor(Load::gemm_tensor, load, &out.product, &out.has_product);
  if (transport == "ce") factor(Load::gemm_tensor, Load::ce_in, &out.product, &out.has_product);
  factor(load, Load::gemm_tensor, &out.transfer, &out.has_transfer);
  return out;
}

}  // namespace overlace::study
