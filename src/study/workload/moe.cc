#include "src/study/workload/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/ceil_div_pod.h"
#include "src/sim/engine/engine.h"
#include "src/spec/costs.h"

namespace overlace::study {
namespace {

base::Status check_moe_run(const MoeModel& model, const MoeRun& run, const spec::Machine& machine,
                           const Network& network, int group) {
  if (!machine.has_costs())
    return base::error(Errc::not_supported, "machine {}: it has limits only, wanted costs of gemm, copy and link",
                       machine.name);
  for (const int64_t size : {model.hidden, model.intermediate, model.tokens})
    if (size < 1 || size > (1 << 24)) return base::invalid_argument("moe: a size is {}, wanted 1 to 16777216", size);
  if (model.experts < 1 || model.experts > 65536 || model.top_k < 1 || model.top_k > model.experts)
    return base::invalid_argument("moe: top {} of {} experts, wanted 1 to all of at most 65536", model.top_k,
                                  model.experts);
  if (group < 1 || group > network.ranks || network.ranks % group != 0 || model.experts % group != 0)
    return base::invalid_argument("moe: groups of {} ranks, wanted a divisor of {} ranks and {} experts", group,
                                  network.ranks, model.experts);
  if (run.chunks < 1 || run.chunks > 64 || !(run.zipf >= 0) || !(run.zipf <= 8) || !(model.element_bytes > 0) ||
      !(model.element_bytes <= 8))
    return base::invalid_argument("moe: {} chunks, zipf {}, {} bytes per element, wanted 1 to 64, 0 to 8, 0 to 8",
                                  run.chunks, run.zipf, model.element_bytes);
  if (const int64_t transfers = int64_t{network.ranks} * group; transfers > kMostTasks)
    return base::invalid_argument("moe: {} ranks x {} in a group are {} transfers, wanted at most {}", network.ranks,
                                  group, transfers, kMostTasks);
  if (const int64_t counts = int64_t{group} * model.experts; counts > kMostTasks)
    return base::invalid_argument("moe: {} ranks of a group x {} experts are {} counts, wanted at most {}", group,
                                  model.experts, counts, kMostTasks);
  if (run.counts.empty()) return {};
  if (run.counts.size() != static_cast<size_t>(group) * static_cast<size_t>(model.experts))
    return base::invalid_argument("moe: {} counts, wanted {} ranks x {} experts", run.counts.size(), group,
                                  model.experts);
  for (const int64_t count : run.counts)
    if (count < 0 || count > (1 << 24))
      return base::invalid_argument("moe: a count is {}, wanted 0 to 16777216", count);
  const int64_t sent = model.tokens * model.top_k;
  for (auto row = run.counts.begin(); row != run.counts.end(); row += model.experts)
    if (const int64_t sum = std::accumulate(row, row + model.experts, int64_t{0}); sum != sent)
      return base::invalid_argument("moe: the counts of rank {} are {} together, wanted {} ({} tokens x top {})",
                                    (row - run.counts.begin()) / model.experts, sum, sent, model.tokens, model.top_k);
  return {};
}

/// A layer of one group; other groups do the same.
class MoeLayer {
 public:
  MoeLayer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine, const Network& network, int group)
      : model_(model), run_(run), machine_(machine), network_(network), group_(group) {
    counts_ = run.counts.empty() ? moe_counts(model, group, run.zipf, run.seed) : run.counts;
    const auto n = static_cast<size_t>(group), experts = static_cast<size_t>(model.experts), own = experts / n;
    to_rank_.assign(n * n, 0);
    rows_.assign(experts, 0);
    for (size_t from = 0; from < n; ++from)
      for (size_t expert = 0; expert < experts; ++expert) {
        to_rank_[from * n + expert / own] += counts_[from * experts + expert];
        rows_[expert] += counts_[from * experts + expert];
      }
  }

  base::Result<MoeTime> time(base::Trace* timeline) {
    MoeTime out;
    for (const bool is_whole : {true, false}) {
      if (is_whole && run_.chunks == 1) continue;  // the chunk is the whole
      OVERLACE_TRY(transfers(is_whole ? 1 : run_.chunks));
    }
    out.algorithm = dispatch_.algorithm;
    Step step(is_even() ? 1 : group_);
    add(&step);
    base::Result<StepTime> time = step.run(machine_.contention);
    if (!time.ok()) return time.status();
    out.layer_us = time->us;
    out.bound_us = time->bound_us;
    out.serial_us = time->serial_us;
    out.compute_us = time->compute_us;
    out.dispatch_us = whole_dispatch_us_;
    out.combine_us = whole_combine_us_;
    summarize(&out);
    if (timeline != nullptr) *timeline = step.to_trace(*time, "MoE layer, simulated");
    return out;
  }

 private:
  size_t n() const { return static_cast<size_t>(group_); }
  /// All ranks do the same: one stands for all.
  bool is_even() const {
    const auto all_equal = [](const std::vector<double>& v) {
      return std::all_of(v.begin(), v.end(), [&](double x) { return x == v.front(); });
    };
    for (size_t i = 1; i < rows_.size(); ++i)
      if (rows_[i] != rows_[0]) return false;
    return all_equal(dispatch_.us) && all_equal(combine_.us);
  }
  double token_bytes() const { return static_cast<double>(model_.hidden) * model_.element_bytes; }

  base::Status transfers(int chunks) {
    dispatch_.us.assign(n(), 0);
    combine_.us.assign(n(), 0);
    if (group_ == 1 || run_.is_ideal) return {};
    for (const bool is_dispatch : {true, false}) {
      std::vector<uint64_t> bytes(n() * n(), 0);
      for (size_t from = 0; from < n(); ++from)
        for (size_t to = 0; to < n(); ++to)
          if (from != to) {
            const auto tokens = static_cast<double>(to_rank_[from * n() + to]);
            bytes[is_dispatch ? from * n() + to : to * n() + from] =
                static_cast<uint64_t>(std::ceil(tokens * token_bytes() / chunks));
          }
      base::Result<UnevenTime> time = all_to_all_uneven(network_, bytes, {1, group_});
      if (!time.ok()) return time.status();
      (is_dispatch ? dispatch_ : combine_) = std::move(*time);
    }
    if (whole_dispatch_us_ == 0) {
      whole_dispatch_us_ = dispatch_.longest_us();
      whole_combine_us_ = combine_.longest_us();
    }
    return {};
  }

  double launch_us() const { return machine_.latency.launch_us.value; }
  double memory_us(double bytes) const { return spec::reduce_us(machine_, bytes) + launch_us(); }
  /// Gate and up in one GEMM, then down, of a chunk of what the experts of a rank got; one kernel each.
  double experts_us(size_t rank, bool is_down) const {
    const size_t own = rows_.size() / n();
    double us = 0;
    for (size_t e = rank * own; e < (rank + 1) * own; ++e) {
      const int64_t rows = base::ceil_div(rows_[e], run_.chunks);
      if (rows == 0) continue;
      const spec::GemmWork work = is_down ? spec::GemmWork{rows, model_.hidden, model_.intermediate}
                                          : spec::GemmWork{rows, 2 * model_.intermediate, model_.hidden};
      const spec::GemmCost cost = spec::gemm_cost(machine_, work);
      us += cost.us - cost.start_us;  // the experts of a kernel follow each other without a gap
    }
    return us > 0 ? us + machine_.gemm.start_us.value + launch_us() : 0;
  }

  void add(Step* step) const {
    const int ranks = is_even() ? 1 : group_;
    const double sent = static_cast<double>(model_.tokens) * model_.top_k, q = run_.chunks;
    std::vector<int> out_groups;
    std::vector<int> in_groups;
    for (int chunk = 0; chunk < run_.chunks; ++chunk) {
      in_groups.push_back(step->new_group());
      out_groups.push_back(step->new_group());
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto r = static_cast<size_t>(rank);
      const auto compute = [&](const char* name, double us, double flops, std::initializer_list<int> after) {
        return step->add({.name = name, .rank = rank, .us = us, .flops = flops}, after);
      };
      const auto transfer = [&](const char* name, double us, int group, int after) {
        return step->add({.name = name,
                          .rank = rank,
                          .lane = kNetLane,
                          .us = us,
                          .group = group,
                          .load = spec::Load::ce_out,
                          .bytes = static_cast<int64_t>(sent * token_bytes() / q)},
                         {after});
      };
      const double logits = spec::gemm_cost(machine_, {model_.tokens, model_.experts, model_.hidden}).us + launch_us();
      const double router_flops = 2.0 * static_cast<double>(model_.tokens * model_.hidden) * model_.experts;
      int ready = compute("router", logits, router_flops, {});
      ready = compute("permute", memory_us(2 * sent * token_bytes()), 0, {ready});
      std::vector<int> arrived, computed;
      for (int c = 0; c < run_.chunks; ++c)
        arrived.push_back(transfer("dispatch all_to_all", dispatch_.us[r], in_groups[static_cast<size_t>(c)], ready));
      const size_t own = rows_.size() / n();
      const auto rows =
          static_cast<double>(std::accumulate(rows_.begin() + static_cast<std::ptrdiff_t>(r * own),
                                              rows_.begin() + static_cast<std::ptrdiff_t>((r + 1) * own), int64_t{0})) /
          q;
      const double flops = 2 * rows * static_cast<double>(model_.hidden * model_.intermediate);
      for (int c = 0; c < run_.chunks; ++c) {
        compute("gate_up", experts_us(r, false), 2 * flops, {arrived[static_cast<size_t>(c)]});
        compute("activation", memory_us(3 * rows * static_cast<double>(model_.intermediate) * model_.element_bytes), 0,
                {});
        const int down = compute("down", experts_us(r, true), flops, {});
        computed.push_back(transfer("combine all_to_all", combine_.us[r], out_groups[static_cast<size_t>(c)], down));
      }
      compute("weighted_sum", memory_us((sent + static_cast<double>(model_.tokens)) * token_bytes()), 0,
              {computed.back()});
    }
  }

  void summarize(MoeTime* out) const {
    std::vector<int64_t> load(n(), 0);
    double sent = 0;
    for (size_t from = 0; from < n(); ++from)
      for (size_t to = 0; to < n(); ++to) {
        load[to] += to_rank_[from * n() + to];
        if (from != to) sent += static_cast<double>(to_rank_[from * n() + to]);
      }
    const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
    const auto most = static_cast<double>(*std::max_element(load.begin(), load.end()));
    out->imbalance = all > 0 ? most * group_ / all : 1;
    out->sent_bytes = sent * token_bytes() / group_;
  }

  const MoeModel& model_;
  const MoeRun& run_;
  const spec::Machine& machine_;
  const Network& network_;
  int group_;
  std::vector<int64_t> counts_, to_rank_, rows_;  // [rank][expert], [rank][rank], by expert
  UnevenTime dispatch_, combine_;                 // of a chunk
  double whole_dispatch_us_ = 0, whole_combine_us_ = 0;
};

}  // namespace

std::vector<int64_t> moe_counts(const MoeModel& model, int group, double zipf, uint64_t seed) {
  const auto experts = static_cast<size_t>(model.experts);
  std::vector<size_t> order(experts);  // of popularity
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const uint64_t x = sim::random_bits(seed, a, 0, 0), y = sim::random_bits(seed, b, 0, 0);
    return x != y ? x < y : a < b;
  });
  std::vector<double> share(experts);
  double sum = 0;
  for (size_t i = 0; i < experts; ++i) sum += share[order[i]] = std::pow(static_cast<double>(i + 1), -zipf);
  const int64_t sent = model.tokens * model.top_k;
  std::vector<int64_t> row(experts);
  double taken = 0;
  int64_t given = 0;
  for (size_t e = 0; e < experts; ++e) {  // rounds the sums so far, so that all of them are given out
    taken += share[e] / sum;
    const auto until = e + 1 == experts ? sent : std::llround(std::min(taken, 1.0) * static_cast<double>(sent));
    row[e] = std::max<int64_t>(until - given, 0);
    given += row[e];
  }
  std::vector<int64_t> counts;
  for (int rank = 0; rank < group; ++rank) counts.insert(counts.end(), row.begin(), row.end());
  return counts;
}

base::Result<std::vector<int64_t>> moe_counts_from_json(const base::Json& json, int group, int experts,
                                                        std::string_view source) {
  const base::Json* rows = json.find("counts");
  if (rows == nullptr || !rows->is_array() || rows->as_array().size() != static_cast<size_t>(group))
    return base::error(Errc::corrupt, "{}: counts, wanted an array of {} rows, one per rank", source, group);
  std::vector<int64_t> counts;
  for (size_t i = 0; i < rows->as_array().size(); ++i) {
    const base::Json& row = rows->as_array()[i];
    if (!row.is_array() || row.as_array().size() != static_cast<size_t>(experts))
      return base::error(Errc::corrupt, "{}: counts[{}], wanted an array of {} numbers, one per expert", source, i,
                         experts);
    for (const base::Json& count : row.as_array()) {
      if (!count.is_int() || count.as_int() < 0 || count.as_int() > (1 << 24))
        return base::error(Errc::corrupt, "{}: counts[{}]: {}, wanted whole numbers of 0 to 16777216", source, i,
                           count.dump());
      counts.push_back(count.as_int());
    }
  }
  return counts;
}

base::Result<MoeTime> moe_layer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine,
                                const Network& network, base::Trace* timeline) {
  const int group = run.group == 0 ? network.ranks : run.group;
  OVERLACE_TRY(check_moe_run(model, run, machine, network, group));
  return MoeLayer(model, run, machine, network, group).time(timeline);
}

}  // namespace overlace::study
