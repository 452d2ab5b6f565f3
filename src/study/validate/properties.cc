#include "src/study/validate/properties.h"

#include <algorithm>

#include "overlace/error.h"
#include "overlace/sim.h"
#include "src/base/format.h"
#include "src/spec/operators.h"
#include "src/study/network/collectives.h"
#include "src/study/workload/moe.h"
#include "src/study/workload/transformer.h"

namespace overlace::study {
namespace {

constexpr uint64_t kRoundingPs = 10;  // of rates that a wider machine has

class Check {
 public:
  explicit Check(std::vector<Property>* list, std::string name) : list_(list), at_(list->size()) {
    list->push_back({std::move(name), 0, 0, {}});
  }
  void expect(bool holds, const std::string& what) {
    Property& p = (*list_)[at_];
    ++p.cases;
    if (holds) return;
    if (p.failures++ == 0) p.first_failure = what;
  }

 private:
  std::vector<Property>* list_;
  size_t at_;
};

struct Case {
  std::string name;
  spec::Schedule schedule;
};

/// Every operator, family, team and degree that can be made and run on the machine.
std::vector<Case> cases_of(const spec::Machine& machine) {
  std::vector<Case> out;
  for (const spec::OperatorDef* def : spec::operators()) {
    if (!def->fields.empty()) continue;  // the sizes do not pose its problem
    for (const spec::FamilyDef& family : def->families)
      for (const int ranks : {1, 2, 4})
        for (const int degree : {1, 4}) {
          spec::OpSpec op;
          op.op = def->name;
          op.m = 2048;
          op.n = 1536;
          op.k = 1024;
          op.ranks = ranks;
          spec::Params params;
          if (family.form == spec::ClosedForm::tile_kernel)
            params = {{"align", int64_t{256}}, {"align_n", int64_t{128}}};
          try {
            spec::Schedule schedule = spec::make_schedule(op, family.name, degree, params);
            (void)sim::simulate(schedule, machine);
            out.push_back({base::format("{} {} on {} ranks, degree {}", def->name, family.name, ranks, degree),
                           std::move(schedule)});
          } catch (const InvalidArgument&) {  // a family that does not take this team or shape
          } catch (const Unsupported&) {      // or this machine
          }
        }
  }
  return out;
}

/// Gathers rows in a way in which all ranks do the same.
bool is_alike(const spec::Schedule& schedule) {
  const spec::FamilyDef& family = *spec::family_of(schedule);
  const bool is_even = family.form == spec::ClosedForm::library || family.form == spec::ClosedForm::per_shard;
  return is_even && spec::gathers(schedule.op);
}

void check_schedules(const spec::Machine& machine, std::vector<Property>* list) {
  const std::vector<Case> cases = cases_of(machine);
  spec::Machine wide = machine, turned = machine, quiet = machine;
  for (spec::Figure* rate : {&wide.link.egress_GBps, &wide.link.ingress_GBps, &wide.memory.hbm_GBps}) rate->value *= 2;
  std::reverse(turned.gemm.tiles.begin(), turned.gemm.tiles.end());
  quiet.noise = {};
  sim::SimOptions plain, twice, seeded;
  plain.has_contention = false;
  twice.calls = 2;
  seeded.seed = 7;
  Check bounds(list, "schedules: bound <= time <= sum of all tasks, without contention");
  Check bytes(list, "schedules: bytes that passed are those of the regions, sent as received");
  Check wider(list, "schedules: more bandwidth is never slower");
  Check again(list, "schedules: the same twice, with noise too");
  Check seeds(list, "schedules: without noise seeds do not matter");
  Check tiles(list, "schedules: the order of the machine's tiles does not matter");
  for (const Case& c : cases) {
    const sim::SimResult alone = sim::simulate(c.schedule, machine, plain);
    const double slack = 1e-6 * static_cast<double>(alone.events);  // whole ps
    bounds.expect(alone.us() >= alone.bound_us * (1 - 1e-9) && alone.us() <= alone.serial_us + slack,
                  base::format("{}: {} us between {} and {}", c.name, alone.us(), alone.bound_us, alone.serial_us));
    const sim::SimResult both = sim::simulate(c.schedule, machine, twice);
    int64_t sent = 0;
    for (const sim::RankBytes& b : both.bytes) sent += b.egress - b.ingress;
    bytes.expect(both.bytes == both.static_bytes && sent == 0, c.name);
    const uint64_t faster = sim::simulate(c.schedule, wide, plain).time_ps;
    wider.expect(faster <= alone.time_ps + kRoundingPs,
                 base::format("{}: {} ps, with twice the rates {} ps", c.name, alone.time_ps, faster));
    again.expect(
        sim::simulate(c.schedule, machine, seeded).time_ps == sim::simulate(c.schedule, machine, seeded).time_ps,
        c.name);
    seeds.expect(sim::simulate(c.schedule, quiet, seeded).time_ps == sim::simulate(c.schedule, quiet).time_ps, c.name);
    tiles.expect(sim::simulate(c.schedule, turned).time_ps == sim::simulate(c.schedule, machine).time_ps, c.name);
  }
  Check permuted(list, "schedules: whichever rank is late or slow costs the same");
  for (const Case& c : cases) {
    if (!is_alike(c.schedule)) continue;
    const auto ranks = static_cast<size_t>(std::get<int64_t>(c.schedule.params.at("G")));
    for (size_t rank = 1; rank < ranks; ++rank) {
      const auto time = [&](size_t which) {
        sim::SimOptions late;
        late.start_us.assign(ranks, 0);
        late.slower.assign(ranks, 1);
        late.start_us[which] = 37;
        late.slower[which] = 1.5;
        return sim::simulate(c.schedule, machine, late).time_ps;
      };
      permuted.expect(time(rank) == time(0), base::format("{}: rank {}", c.name, rank));
    }
  }
}

base::Status check_networks(std::vector<Property>* list) {
  Check bounds(list, "networks: no collective is faster than what links allow");
  Check wider(list, "networks: more bandwidth is never slower");
  constexpr uint64_t kBytes = 8 << 20;
  const auto networks = [](double rate) -> std::vector<base::Result<Network>> {
    return {nvswitch(8, {100 * rate, 0.25}), full_mesh(8, {64 * rate, 0}), ring(6, {25 * rate, 1}),
            torus({4, 4}, {25 * rate, 0.5}), rail_fat_tree(4, 4, 48.5 * rate, 4, 2)};
  };
  const auto slow = networks(1), fast = networks(2);
  for (size_t i = 0; i < slow.size(); ++i) {
    if (!slow[i].ok()) return slow[i].status();
    if (!fast[i].ok()) return fast[i].status();
    for (const Collective op :
         {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce, Collective::all_to_all})
      for (const std::string_view algorithm : algorithms(op, *slow[i])) {
        const auto a = run_collective(op, algorithm, *slow[i], kBytes),
                   b = run_collective(op, algorithm, *fast[i], kBytes);
        if (!a.ok()) return a.status();
        if (!b.ok()) return b.status();
        const std::string name = base::format("{} on {}", algorithm, slow[i]->name);
        const double bound = lower_bound_us(op, *slow[i], kBytes);
        bounds.expect(a->us >= bound * (1 - 1e-6), base::format("{}: {} us, bound {}", name, a->us, bound));
        wider.expect(b->us <= a->us + 1e-3, base::format("{}: {} us, with twice the rates {}", name, a->us, b->us));
      }
  }
  return {};
}

base::Status check_steps(const spec::Machine& machine, std::vector<Property>* list) {
  Check bounds(list, "steps: bound <= time, a network that takes no time is not slower");
  Check folded(list, "steps: ranks that are alike, folded into one, are all of them to the bit");
  Check alone(list, "steps: one GPU communicates nothing");
  TransformerModel model;
  model.hidden = 2048;
  model.intermediate = 8192;
  model.heads = 16;
  model.layers = 4;
  const Network networks[] = {torus({4, 4}, {50, 0.5}).value(), rail_fat_tree(2, 8, 48.5, 64, 1).value()};
  for (const Network& network : networks)
    for (const int chunks : {1, 4}) {
      TransformerRun run;
      run.tensor = 2;
      run.pipeline = 2;
      run.chunks = chunks;
      const auto step = transformer_step(model, run, machine, network);
      if (!step.ok()) return step.status();
      run.slower.assign(static_cast<size_t>(step->replicas), 1);
      const auto all = transformer_step(model, run, machine, network);
      run.slower.clear();
      run.is_ideal = true;
      const auto free = transformer_step(model, run, machine, network);
      for (const auto* one : {&all, &free})
        if (!one->ok()) return one->status();
      const std::string name = base::format("transformer on {}, {} chunks", network.name, chunks);
      bounds.expect(step->step_us >= step->bound_us - 1e-3 && free->step_us <= step->step_us + 1e-3, name);
      folded.expect(all->step_us == step->step_us, base::format("{}: {} and {}", name, step->step_us, all->step_us));
    }
  TransformerRun run;
  run.tensor = 1;
  const auto one = transformer_step(model, run, machine, nvswitch(1).value());
  if (!one.ok()) return one.status();
  alone.expect(one->layer.exposed_us() == 0 && one->gradient_us == 0, "transformer");
  MoeModel moe;
  moe.experts = 16;
  moe.tokens = 1024;
  const auto layer = moe_layer(moe, {}, machine, nvswitch(1).value());
  if (!layer.ok()) return layer.status();
  alone.expect(layer->exposed_us() == 0 && layer->dispatch_us == 0, "moe");
  return {};
}

}  // namespace

base::Result<std::vector<Property>> check_properties(const spec::Machine& machine) {
  if (!machine.has_costs())
    return base::error(Errc::not_supported, "machine {}: it has limits only, wanted costs of gemm, copy and link",
                       machine.name);
  std::vector<Property> list;
  try {
    check_schedules(machine, &list);
    OVERLACE_TRY(check_networks(&list));
    OVERLACE_TRY(check_steps(machine, &list));
  } catch (...) {
    return base::status_of_current_exception();
  }
  return list;
}

}  // namespace overlace::study
