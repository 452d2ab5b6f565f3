#include "src/study/validate/properties.h"

#include <algorithm>
#include <numeric>

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

MoeModel routed(int experts, int top_k) {
  MoeModel model;
  model.experts = experts;
  model.top_k = top_k;
  model.tokens = 1024;
  return model;
}

/// What is sent: no more than there is, no less than must be, wherever experts lie and whichever are popular.
base::Status check_moe_rows(std::vector<Property>* list) {
  Check copies(list, "moe: each rank has tokens x top k copies, of a token at most one for an expert");
  Check rows(list, "moe: rows are at most copies and tokens, and bring every token to a rank");
  Check single(list, "moe: with top 1 rows are copies, with all experts on one rank tokens");
  Check none(list, "moe: a rank without experts gets nothing");
  for (const int experts : {1, 3, 16, 60})
    for (const int ranks : {1, 4, 16, 24})
      for (const int top_k : {1, 3, 8})
        for (const double zipf : {0.0, 0.7, 6.0}) {
          if (top_k > experts) continue;
          const MoeModel model = routed(experts, top_k);
          MoeRouting routing;
          routing.zipf = zipf;
          const auto load = moe_load(model, routing, ranks);
          routing.begin.assign(static_cast<size_t>(ranks) + 1, experts);
          routing.begin[0] = 0;  // rank 0 has all experts
          const auto together = moe_load(model, routing, ranks);
          for (const auto* one : {&load, &together})
            if (!one->ok()) return one->status();
          const std::string name = base::format("{} experts on {} ranks, top {}, zipf {}", experts, ranks, top_k, zipf);
          const auto tokens = static_cast<double>(model.tokens), all = static_cast<double>(ranks) * tokens;
          const auto of_experts = std::accumulate(load->expert.begin(), load->expert.end(), int64_t{0});
          copies.expect(of_experts == int64_t{ranks} * model.tokens * top_k &&
                            std::ranges::max(load->expert) <= int64_t{ranks} * model.tokens,
                        name);
          for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
            const auto copies_of = static_cast<double>(load->load(r));
            rows.expect(load->received(r) <= std::min(copies_of, all) && load->sent(r) >= tokens - 1 &&
                            load->sent(r) <= tokens * std::min(top_k, ranks),
                        name);
            single.expect((top_k > 1 || load->received(r) == copies_of) && together->sent(r) == tokens, name);
            if (load->local(r) == 0) none.expect(load->received(r) == 0 && copies_of == 0, name);
          }
        }
  return {};
}

/// What the layer takes, without contention.
base::Status check_moe_times(spec::Machine machine, std::vector<Property>* list) {
  machine.contention.clear();
  Check bounds(list, "moe: bound <= time, a network that takes no time is not slower");
  Check fewer(list, "moe: dispatch of rows never sends more than that of copies, nor takes longer");
  Check same(list, "moe: with top 1 a row per copy takes the same to the bit");
  Check shared(list, "moe: shared experts send nothing, and add at most what they compute");
  const Network networks[] = {nvswitch(8).value(), rail_fat_tree(2, 8, 48.5, 64, 1).value()};
  for (const Network& network : networks)
    for (const auto& [experts, top_k] : {std::pair{16, 1}, {16, 4}, {5, 3}, {60, 8}})
      for (const double zipf : {0.0, 6.0})
        for (const int chunks : {1, 3}) {
          MoeModel model = routed(experts, top_k);
          MoeRun run, copy, ideal;
          for (MoeRun* one : {&run, &copy, &ideal}) {
            one->zipf = zipf;
            one->chunks = chunks;
          }
          copy.is_row_per_copy = ideal.is_ideal = true;
          const auto time = moe_layer(model, run, machine, network),
                     per_copy = moe_layer(model, copy, machine, network),
                     free = moe_layer(model, ideal, machine, network);
          model.shared_experts = 1;
          const auto with = moe_layer(model, run, machine, network);
          for (const auto* one : {&time, &per_copy, &free, &with})
            if (!one->ok()) return one->status();
          const std::string name =
              base::format("{} experts, top {}, zipf {}, {} chunks, {}", experts, top_k, zipf, chunks, network.name);
          bounds.expect(time->layer_us >= time->bound_us - 1e-3 && free->layer_us <= time->layer_us + 1e-3, name);
          const double most = time->layer_us + with->compute_us - time->compute_us + 1e-3;
          fewer.expect(time->sent_bytes <= per_copy->sent_bytes && time->copy_bytes == per_copy->sent_bytes &&
                           time->dispatch_us <= per_copy->dispatch_us * (1 + 1e-9),
                       name);
          if (top_k == 1) same.expect(time->layer_us == per_copy->layer_us, name);
          shared.expect(
              with->sent_bytes == time->sent_bytes && with->layer_us >= time->layer_us - 1e-3 && with->layer_us <= most,
              name);
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
  MoeModel moe = routed(16, 8);
  moe.shared_experts = 1;
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
    OVERLACE_TRY(check_moe_rows(&list));
    OVERLACE_TRY(check_moe_times(machine, &list));
  } catch (...) {
    return base::status_of_current_exception();
  }
  return list;
}

}  // namespace overlace::study
