#include "src/study/workload/moe.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/ceil_div_pod.h"
#include "src/spec/costs.h"

namespace overlace::study {
namespace {

base::Status check_moe_run(const MoeModel& model, const MoeRun& run, const spec::Machine& machine) {
  if (!machine.has_costs())
    return base::error(Errc::not_supported, "machine {}: it has limits only, wanted costs of gemm, copy and link",
                       machine.name);
  if (run.chunks < 1 || run.chunks > 64 || !(model.element_bytes > 0) || !(model.element_bytes <= 8))
    return base::invalid_argument("moe: {} chunks, {} bytes per element, wanted 1 to 64, 0 to 8", run.chunks,
                                  model.element_bytes);
  return {};
}

/// A layer of one group; other groups do the same.
class MoeLayer {
 public:
  MoeLayer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine, const Network& network, MoeLoad load)
      : model_(model), run_(run), machine_(machine), network_(network), load_(std::move(load)) {
    for (size_t r = 0; r < n(); ++r) {
      sent_.push_back(load_.sent(r));
      received_.push_back(load_.received(r));
    }
  }

  base::Result<MoeTime> time(base::Trace* timeline) {
    MoeTime out;
    for (const bool is_whole : {true, false}) {
      if (is_whole && run_.chunks == 1) continue;  // the chunk is the whole
      OVERLACE_TRY(transfers(is_whole ? 1 : run_.chunks));
    }
    out.algorithm = dispatch_.algorithm;
    Step step(is_even() ? 1 : load_.ranks());
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
  size_t n() const { return load_.begin.size() - 1; }
  /// All ranks do the same: one stands for all.
  bool is_even() const {
    const auto all_equal = [](const auto& v) {
      return std::all_of(v.begin(), v.end(), [&](const auto& x) { return x == v.front(); });
    };
    for (size_t r = 1; r < n(); ++r)
      if (load_.local(r) != load_.local(0)) return false;
    return all_equal(load_.expert) && all_equal(sent_) && all_equal(received_) && all_equal(dispatch_.us) &&
           all_equal(combine_.us);
  }
  double token_bytes() const { return static_cast<double>(model_.hidden) * model_.element_bytes; }

  base::Status transfers(int chunks) {
    const size_t n = this->n();
    dispatch_.us.assign(n, 0);
    combine_.us.assign(n, 0);
    if (n == 1 || run_.is_ideal) return {};
    for (const bool is_dispatch : {true, false}) {
      std::vector<uint64_t> bytes(n * n, 0);
      for (size_t from = 0; from < n; ++from)
        for (size_t to = 0; to < n; ++to)
          if (from != to)
            bytes[is_dispatch ? from * n + to : to * n + from] =
                static_cast<uint64_t>(std::ceil(load_.rows[from * n + to] * token_bytes() / chunks));
      base::Result<UnevenTime> time = all_to_all_uneven(network_, bytes, {1, load_.ranks()});
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
  spec::GemmWork gemm_of(int64_t rows, int64_t intermediate, bool is_down) const {
    return is_down ? spec::GemmWork{rows, model_.hidden, intermediate}
                   : spec::GemmWork{rows, 2 * intermediate, model_.hidden};
  }
  /// Gate and up in one GEMM, then down, of a chunk of what the experts of a rank got; one kernel each.
  double experts_us(size_t rank, bool is_down) const {
    double us = 0;
    for (size_t e = load_.begin[rank]; e < load_.begin[rank + 1]; ++e) {
      const int64_t rows = base::ceil_div(load_.expert[e], run_.chunks);
      if (rows == 0) continue;
      const spec::GemmCost cost = spec::gemm_cost(machine_, gemm_of(rows, model_.intermediate, is_down));
      us += cost.us - cost.start_us;  // the experts of a kernel follow each other without a gap
    }
    return us + machine_.gemm.start_us.value + launch_us();
  }
  double activation_us(double rows, double intermediate) const {
    return memory_us(3 * rows * intermediate * model_.element_bytes);
  }
  double mlp_flops(double rows, double intermediate) const {
    return 2 * rows * static_cast<double>(model_.hidden) * intermediate;
  }

  /// Tasks of one rank.
  struct Rank {
    Step* step;
    int number;
    int compute(const char* name, double us, double flops, std::initializer_list<int> after = {}) const {
      return step->add({.name = name, .rank = number, .us = us, .flops = flops}, after);
    }
    int transfer(const char* name, double us, double bytes, int group, int after) const {
      return step->add({.name = name,
                        .rank = number,
                        .lane = kNetLane,
                        .us = us,
                        .group = group,
                        .load = spec::Load::ce_out,
                        .bytes = static_cast<int64_t>(bytes)},
                       {after});
    }
  };

  void add(Step* step) const {
    std::vector<int> out_groups;
    std::vector<int> in_groups;
    for (int chunk = 0; chunk < run_.chunks; ++chunk) {
      in_groups.push_back(step->new_group());
      out_groups.push_back(step->new_group());
    }
    const auto tokens = static_cast<double>(model_.tokens);
    const int ranks = is_even() ? 1 : load_.ranks();
    for (int number = 0; number < ranks; ++number) {
      const auto r = static_cast<size_t>(number);
      const Rank rank{step, number};
      const double logits = spec::gemm_cost(machine_, {model_.tokens, model_.experts, model_.hidden}).us + launch_us();
      const double router_flops = 2.0 * static_cast<double>(model_.tokens * model_.hidden) * model_.experts;
      int ready = rank.compute("router", logits, router_flops);
      ready = rank.compute("permute", memory_us(2 * sent_[r] * token_bytes()), 0, {ready});
      const double own = load_.rows[r * n() + r], bytes = (sent_[r] - own) * token_bytes() / run_.chunks;
      std::vector<int> arrived, computed;
      for (const int group : in_groups)
        arrived.push_back(rank.transfer("dispatch all_to_all", dispatch_.us[r], bytes, group, ready));
      add_shared_experts(rank);
      for (size_t c = 0; c < arrived.size(); ++c) computed.push_back(add_experts(rank, arrived[c], out_groups[c]));
      const double summed = sent_[r] + (model_.shared_experts > 0 ? 2 * tokens : tokens);
      rank.compute("weighted_sum", memory_us(summed * token_bytes()), 0, {computed.back()});
    }
  }

  /// What nothing need arrive for goes first: it hides the first rows.
  void add_shared_experts(const Rank& rank) const {
    if (model_.shared_experts == 0) return;
    const int64_t width = model_.intermediate * model_.shared_experts;
    const auto rows = static_cast<double>(model_.tokens), columns = static_cast<double>(width);
    const double flops = mlp_flops(rows, columns);
    rank.compute("shared gate_up", shared_gemm_us(width, false), 2 * flops);
    rank.compute("shared activation", activation_us(rows, columns), 0);
    rank.compute("shared down", shared_gemm_us(width, true), flops);
  }
  double shared_gemm_us(int64_t width, bool is_down) const {
    return spec::gemm_cost(machine_, gemm_of(model_.tokens, width, is_down)).us + launch_us();
  }

  /// A chunk, up to its combine. Where a row is of several copies it is read once and written for each expert, and they
  /// are added up before they return; else a row lies where its expert reads it. Without rows nothing is launched.
  int add_experts(const Rank& rank, int arrived, int group) const {
    const auto r = static_cast<size_t>(rank.number);
    const double q = run_.chunks, received = received_[r] / q, width = static_cast<double>(model_.intermediate);
    const double copies = static_cast<double>(load_.load(r)) / q, flops = mlp_flops(copies, width);
    const bool is_expanded = received_[r] != static_cast<double>(load_.load(r));
    const double passed = (received + copies) * token_bytes();
    if (copies == 0) return rank.transfer("combine all_to_all", combine_.us[r], 0, group, arrived);
    if (is_expanded) arrived = rank.compute("expand", memory_us(passed), 0, {arrived});
    rank.compute("gate_up", experts_us(r, false), 2 * flops, {arrived});
    rank.compute("activation", activation_us(copies, width), 0);
    int last = rank.compute("down", experts_us(r, true), flops);
    if (is_expanded) last = rank.compute("sum of copies", memory_us(passed), 0);
    const double own = load_.rows[r * n() + r] / q;
    return rank.transfer("combine all_to_all", combine_.us[r], (received - own) * token_bytes(), group, last);
  }

  void summarize(MoeTime* out) const {
    std::vector<int64_t> load;
    double sent = 0, copies = 0;
    for (size_t from = 0; from < n(); ++from) {
      load.push_back(load_.load(from));
      for (size_t to = 0; to < n(); ++to) {
        if (from == to) continue;
        sent += load_.rows[from * n() + to];
        copies += static_cast<double>(load_.copies[from * n() + to]);
      }
    }
    const auto all = static_cast<double>(std::accumulate(load.begin(), load.end(), int64_t{0}));
    const auto most = static_cast<double>(*std::max_element(load.begin(), load.end()));
    out->imbalance = all > 0 ? most * load_.ranks() / all : 1;
    out->sent_bytes = sent * token_bytes() / load_.ranks();
    out->copy_bytes = copies * token_bytes() / load_.ranks();
    if (model_.shared_experts == 0) return;
    const int64_t width = model_.intermediate * model_.shared_experts;
    out->shared_us = shared_gemm_us(width, false) + shared_gemm_us(width, true) +
                     activation_us(static_cast<double>(model_.tokens), static_cast<double>(width));
  }

  const MoeModel& model_;
  const MoeRun& run_;
  const spec::Machine& machine_;
  const Network& network_;
  MoeLoad load_;
  std::vector<double> sent_, received_;  // rows, by rank
  UnevenTime dispatch_, combine_;        // of a chunk
  double whole_dispatch_us_ = 0, whole_combine_us_ = 0;
};

}  // namespace

base::Result<int> moe_group(const MoeRun& run, const Network& network) {
  const int group = run.group == 0 ? network.ranks : run.group;
  if (group < 1 || group > network.ranks || network.ranks % group != 0)
    return base::invalid_argument("moe: groups of {} ranks, wanted a divisor of {} ranks", group, network.ranks);
  if (const int64_t transfers = int64_t{network.ranks} * group; transfers > kMostTasks)
    return base::invalid_argument("moe: {} ranks x {} in a group are {} transfers, wanted at most {}", network.ranks,
                                  group, transfers, kMostTasks);
  return group;
}

base::Result<MoeTime> moe_layer(const MoeModel& model, const MoeRun& run, const spec::Machine& machine,
                                const Network& network, base::Trace* timeline) {
  OVERLACE_TRY(check_moe_run(model, run, machine));
  const base::Result<int> group = moe_group(run, network);
  if (!group.ok()) return group.status();
  base::Result<MoeLoad> load = moe_load(model, run, *group);
  if (!load.ok()) return load.status();
  return MoeLayer(model, run, machine, network, std::move(*load)).time(timeline);
}

}  // namespace overlace::study
