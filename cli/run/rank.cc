#include "cli/run/rank.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cli/progress.h"
#include "cli/report/timeline.h"
#include "cli/run/check.h"
#include "cli/run/crew.h"
#include "cli/run/memory.h"
#include "cli/run/oracle.h"
#include "cli/run/outputs.h"
#include "cli/run/result.h"
#include "overlace/context.h"
#include "src/base/version.h"
#include "src/exec/gemm.h"
#include "src/exec/run.h"
#include "src/model/activation_stream.h"
#include "src/model/layer_stream.h"
#include "src/spec/operators.h"
#include "src/tuning/measure.h"

namespace overlace::cli {
namespace {

using base::Result;
using base::Status;
using model::SiteSchedules;

// Weights of the progress bar, in parts of a typical run.
/// Runs that are recorded of each schedule; the one that took most nearly as long as the median is kept.
constexpr int kMostTraces = 5;
constexpr double kLoadWeight = 1, kCheckWeight = 3, kSiteWeight = 2, kTotalWeight = 2, kStreamWeight = 1,
                 kTraceWeight = 1;

bool has_experts_site(const RunPlan& plan) { return plan.config.expert_layers(plan.problem.layers) > 0; }

class RankRun {
 public:
  RankRun(const RunOptions& options, const RunPlan& plan, Runtime& runtime)
      : options_(options),
        plan_(plan),
        runtime_(runtime),
        team_(runtime.world()),
        progress_(stderr, team_.rank() == 0 && shows_progress(STDERR_FILENO, options.quiet),
                  kLoadWeight + kCheckWeight +
                      kSiteWeight * static_cast<double>(plan.sites.size() + (has_experts_site(plan) ? 1 : 0)) +
                      kTotalWeight + (plan.problem.device_bytes > 0 ? kStreamWeight : 0) + kTraceWeight) {}

  Result<bool> run();

 private:
  bool is_first() const { return team_.rank() == 0; }
  /// Without a collectives engine (no NCCL, say) the family `library` cannot run.
  bool has_library() const { return team_.size() == 1 || team_.net() != nullptr; }
  Status open();
  Result<double> measure_us(const model::Site& site, const spec::Schedule& schedule);
  Result<double> measure_flops();
  Result<double> measure_link();
  /// What `auto` chooses by; where no machine file says anything of these ranks, by what is measured now.
  Result<Context> open_context();
  Status choose();
  Status choose_schedules();
  Status check();
  Result<std::vector<float>> whole_output(const SiteSchedules& schedules, std::vector<float>* mine);
  Result<std::vector<int32_t>> whole_choices();
  template <class T>
  Result<std::vector<T>> whole_rows(const T* mine, int64_t width);
  Status time_site(const model::Site& site, SiteResult* result);
  Status time_experts(SiteResult* result);
  Status time_layers();
  Status time_weights();
  Status repeat_forward();
  Status trace();
  Result<base::Trace> trace_pass(const SiteSchedules& schedules, const char* title);
  SiteSchedules of_family(std::string_view family) const;
  spec::Schedule make(const model::Site& site, std::string_view family) const;
  spec::Schedule make(const model::Site& site, spec::Purpose purpose) const;

  const RunOptions& options_;
  const RunPlan& plan_;
  Runtime& runtime_;
  Team& team_;
  Progress progress_;
  Channel* channel_ = nullptr;
  std::unique_ptr<model::Stack> stack_;
  std::unique_ptr<TeamCrew> crew_;
  std::vector<float> input_;  // tokens x hidden
  SiteSchedules chosen_, unfused_, best_serial_;
  RunResult result_;
  std::vector<float> my_output_, output_, baseline_;  // the latter two on rank 0, whole
  base::Trace serial_trace_, overlapped_trace_;       // on rank 0
};

SiteSchedules RankRun::of_family(std::string_view family) const {
  SiteSchedules out;
  for (const model::Site& site : plan_.sites) out[site.name] = make(site, family);
  return out;
}

/// The unfused path is the best there is: on several hosts it crosses once, too.
spec::Schedule RankRun::make(const model::Site& site, std::string_view family) const {
  return spec::make_schedule(site.op, family, 1, {{"hosts", int64_t{plan_.hosts}}});
}

spec::Schedule RankRun::make(const model::Site& site, spec::Purpose purpose) const {
  return spec::make_bound(site.op, purpose, {{"hosts", int64_t{plan_.hosts}}});
}

Status RankRun::open() {
  progress_.begin("loading weights", kLoadWeight);
  const bool on_gpus = plan_.backend == Backend::cuda_peer;
  channel_ = &team_.channel(on_gpus ? StreamRef::cuda(nullptr) : StreamRef::cpu());
  int64_t loaded = 0;
  auto stack = model::Stack::create(plan_.config, plan_.problem, *channel_, [&] {
    progress_.update(static_cast<double>(++loaded) / static_cast<double>(plan_.problem.layers));
  });
  OVERLACE_TRY(agree_on(team_, stack.ok() ? Status() : stack.status()));
  stack_ = std::move(*stack);
  crew_ = std::make_unique<TeamCrew>(team_, *stack_);
  auto input = read_input(options_, plan_);
  OVERLACE_TRY(agree_on(team_, input.ok() ? Status() : input.status()));
  input_ = std::move(*input);
  unfused_ = of_family(has_library() ? spec::kLibrary : spec::kSerial);
  result_.version = base::version();
  result_.backend = on_gpus ? "cuda_peer" : "cpu";
  result_.provider = on_gpus ? "cuBLASLt" : exec::cpu_gemm_provider();
  if (plan_.is_emulated()) result_.link = on_gpus ? "NCCL over sockets" : plan_.link.to_string();
  if (plan_.placement.is_emulated) result_.link += base::format(" ({} hosts on one machine)", plan_.placement.hosts);
  result_.ranks = team_.size();
  result_.hosts = plan_.placement.hosts;
  result_.model = plan_.config.name;
  result_.part = options_.part;
  result_.layers = plan_.problem.layers;
  result_.tokens = plan_.problem.tokens;
  result_.sequence_length = plan_.problem.sequence_length;
  result_.micro_batch = plan_.problem.micro_batch;
  result_.dtype = plan_.problem.dtype;
  result_.seed = plan_.problem.seed;
  result_.repetitions = plan_.repetitions;
  return {};
}

/// A rough one.
Result<double> RankRun::measure_us(const model::Site& site, const spec::Schedule& schedule) {
  tuning::MeasureOptions options;
  options.repetitions = 3;
  options.burst_us = 10000;
  const auto run_it = [&](int iterations) { return stack_->run_site(site.name, schedule, iterations); };
  const auto timing = tuning::measure({{"estimate", run_it}}, *crew_, options);
  if (!timing.ok()) return timing.status();
  return timing->front().median_us;
}

/// Rate of the widest site's GEMM while all ranks compute; of the slowest rank, so that all choose alike.
Result<double> RankRun::measure_flops() {
  const auto work = [](const model::Site& s) {
    return 2.0 * static_cast<double>(s.op.m) * static_cast<double>(s.op.n) * static_cast<double>(s.op.k);
  };
  const auto by_work = [&](const model::Site& a, const model::Site& b) { return work(a) < work(b); };
  const model::Site& site = *std::max_element(plan_.sites.begin(), plan_.sites.end(), by_work);
  const auto us = measure_us(site, spec::make_bound(site.op, spec::Purpose::compute));
  if (!us.ok()) return us.status();
  return work(site) / (*us * 1e-6);
}

/// Bytes per second from one host to another while all do the same, as spec::MachineRates counts them: what a shard
/// takes is what all ranks of a host send, each once.
Result<double> RankRun::measure_link() {
  const auto shard_bytes = [](const model::Site& s) {
    const bool is_ag = spec::gathers(s.op.op);
    const int64_t elements = s.op.m / s.op.ranks * (is_ag ? s.op.k : s.op.n);
    return static_cast<double>(elements) * static_cast<double>(dtype_bytes(is_ag ? s.op.dtype : s.op.out_dtype));
  };
  const auto by_bytes = [&](const model::Site& a, const model::Site& b) { return shard_bytes(a) < shard_bytes(b); };
  const model::Site& site = *std::max_element(plan_.sites.begin(), plan_.sites.end(), by_bytes);
  const auto us = measure_us(site, make(site, spec::Purpose::comm));
  if (!us.ok()) return us.status();
  const int shards = plan_.hosts > 1 ? team_.size() / plan_.hosts : team_.size() - 1;
  return shards * shard_bytes(site) / (*us * 1e-6);
}

Result<Context> RankRun::open_context() {
  try {
    Context context = Context::open(runtime_);
    const spec::Machine& machine = context.machine();
    if (machine.has_costs() || machine.gemm.sustained_TFLOPs.value > 0) return context;
    const bool is_network = !plan_.link.enabled && plan_.placement.hosts > 1;
    const auto link = is_network ? measure_link() : plan_.link.enabled ? plan_.link.bytes_per_s : 0.0;
    if (!link.ok()) return link.status();
    const auto flops = measure_flops();
    if (!flops.ok()) return flops.status();
    const int hosts = machine.is_gpu ? plan_.placement.hosts : is_network || plan_.link.between_hosts ? plan_.hosts : 1;
    return Context::open(runtime_, {.rates = spec::MachineRates{machine.is_gpu, *link, *flops, hosts}});
  } catch (...) {
    return base::status_of_current_exception();
  }
}

Status RankRun::choose() {
  if (!plan_.sites.empty()) OVERLACE_TRY(choose_schedules());
  if (has_experts_site(plan_)) result_.sites.push_back(experts_site(plan_));
  return {};
}

Status RankRun::choose_schedules() {
  const Result<Context> context = open_context();
  if (!context.ok()) return context.status();
  for (const model::Site& site : plan_.sites) {
    SiteResult result;
    result.name = site.name;
    result.op = site.op;
    result.layers = site.layers;
    const auto asked = plan_.request.by_site.find(site.name);
    if (asked != plan_.request.by_site.end()) {
      chosen_[site.name] = asked->second;
      result.reason = plan_.request.reason;
    } else {
      const std::shared_ptr<const plan::Plan> plan = context->plan(site.op);
      chosen_[site.name] = plan->schedule;
      result.reason = plan->reason;
      if (!has_library() && schedule_name(chosen_[site.name]) == spec::kLibrary) {
        chosen_[site.name] = make(site, spec::kSerial);
        result.reason += "; there is no collectives engine: serial";
      }
    }
    result.chosen = schedule_name(chosen_[site.name]);
    result_.sites.push_back(std::move(result));
  }
  return {};
}

Status RankRun::time_experts(SiteResult* result) {
  progress_.begin("timing moe", kSiteWeight);
  int64_t copies = 0;
  const auto run_it = [&](int iterations) {
    const auto mine = stack_->run_experts(iterations);
    if (mine.ok()) copies = *mine;
    return mine.ok() ? Status() : mine.status();
  };
  tuning::MeasureOptions options;
  options.repetitions = plan_.repetitions;
  options.burst_us = 20000;
  options.seed = plan_.problem.seed;
  const auto timings = tuning::measure({{"moe", run_it}}, *crew_, options, [&](int done, int total) {
    progress_.update(static_cast<double>(done) / total);
  });
  if (!timings.ok()) return timings.status();
  const auto most = crew_->max_over_ranks({static_cast<double>(copies)});
  if (!most.ok()) return most.status();
  const int64_t all = result->op.m * result->experts->per_token;
  result->experts->load = most->front() * team_.size() / static_cast<double>(all);
  result->times.serial_us = result->times.overlapped_us = timings->front().median_us;
  result->reason += base::format("; the busiest rank computes {:.2f} times the mean", result->experts->load);
  return {};
}

/// Forward over all layers; `mine` are my rows, the value all rows on rank 0.
Result<std::vector<float>> RankRun::whole_output(const SiteSchedules& schedules, std::vector<float>* mine) {
  const int64_t hidden = plan_.config.hidden;
  std::vector<float> input;
  for (const model::MicroBatch& batch : model::micro_batches(plan_.problem, team_.rank(), team_.size())) {
    const auto begin = input_.begin() + batch.first_row * hidden;
    input.insert(input.end(), begin, begin + batch.rows * hidden);
  }
  mine->assign(input.size(), 0.0f);
  OVERLACE_TRY(stack_->forward(input.data(), schedules, mine->data()));
  return whole_rows(mine->data(), hidden);
}

/// The experts that the tokens of all ranks chose in the last pass, on rank 0: (layers, tokens, experts of a token).
Result<std::vector<int32_t>> RankRun::whole_choices() {
  std::vector<int32_t> out;
  const std::vector<int32_t>& mine = stack_->expert_choices();
  const int64_t layers = plan_.problem.layers, k = plan_.config.experts.per_token;
  for (int64_t layer = 0; k > 0 && layer < layers; ++layer) {
    const auto whole = whole_rows(mine.data() + static_cast<int64_t>(mine.size()) / layers * layer, k);
    if (!whole.ok()) return whole.status();
    out.insert(out.end(), whole->begin(), whole->end());
  }
  return out;
}

/// Collective: rows of `width` elements, one for each of my tokens, put together on rank 0 in the order of tokens.
template <class T>
Result<std::vector<T>> RankRun::whole_rows(const T* mine, int64_t width) {
  const auto last = model::micro_batches(plan_.problem, team_.rank(), team_.size()).back();
  const size_t my_bytes = static_cast<size_t>((last.at + last.rows) * width) * sizeof(T);
  const auto parts = gather(team_, std::string(reinterpret_cast<const char*>(mine), my_bytes));
  if (!parts.ok()) return parts.status();
  std::vector<T> whole(is_first() ? static_cast<size_t>(plan_.problem.tokens * width) : 0);
  for (size_t rank = 0; rank < parts->size(); ++rank) {
    const std::vector<model::MicroBatch> batches =
        model::micro_batches(plan_.problem, static_cast<int>(rank), team_.size());
    const size_t wanted = static_cast<size_t>((batches.back().at + batches.back().rows) * width) * sizeof(T);
    const std::string& part = parts->at(rank);
    if (is_first() && part.size() != wanted)
      return base::error(Errc::internal, "rank {}'s rows are {} bytes, wanted {}", rank, part.size(), wanted);
    for (const model::MicroBatch& batch : batches) {
      if (!is_first()) break;
      std::memcpy(whole.data() + batch.first_row * width,
                  part.data() + static_cast<size_t>(batch.at * width) * sizeof(T),
                  static_cast<size_t>(batch.rows * width) * sizeof(T));
    }
  }
  return whole;
}

Status RankRun::check() {
  progress_.begin("running the layers", kCheckWeight / 3);
  std::vector<float> unused;
  auto baseline = whole_output(unfused_, &unused);
  if (!baseline.ok()) return baseline.status();
  baseline_ = std::move(*baseline);
  const auto baseline_choices = whole_choices();
  if (!baseline_choices.ok()) return baseline_choices.status();
  auto output = whole_output(chosen_, &my_output_);
  if (!output.ok()) return output.status();
  output_ = std::move(*output);
  auto output_choices = whole_choices();
  if (!output_choices.ok()) return output_choices.status();
  progress_.begin("computing the fp64 oracle", kCheckWeight * 2 / 3);
  model::ExpertChoices choices{std::move(*output_choices)};
  const auto on_share = [&](double share) { progress_.update(share); };
  const auto oracle = oracle_in_background(plan_, input_, runtime_, *crew_, &choices, on_share);
  if (!oracle.ok()) return oracle.status();
  // Each run is compared along its own choice of experts; they rarely differ.
  const auto differ = crew_->max_over_ranks({choices.experts != *baseline_choices ? 1.0 : 0.0});
  if (!differ.ok()) return differ.status();
  Result<std::vector<double>> of_baseline = std::vector<double>{};
  double gap = choices.gap;
  if (differ->front() > 0) {
    model::ExpertChoices other{*baseline_choices};
    of_baseline = oracle_in_background(plan_, input_, runtime_, *crew_, &other, on_share);
    if (!of_baseline.ok()) return of_baseline.status();
    gap = std::max(gap, other.gap);
  }
  if (is_first()) {
    int64_t depth = plan_.config.hidden;
    for (const model::Site& site : plan_.sites)
      depth = std::max(depth, spec::gathers(site.op.op) ? site.op.k : site.op.k * site.op.ranks);
    result_.error = relative_error(output_, *oracle);
    result_.baseline_error = relative_error(baseline_, of_baseline->empty() ? *oracle : *of_baseline);
    depth = std::max({depth, plan_.config.experts.intermediate, plan_.config.experts.shared});
    Verdict verdict = judge(result_.error, result_.baseline_error, plan_.problem.dtype, plan_.problem.layers, depth);
    judge_choices(gap, result_.baseline_error, plan_.problem.dtype, &verdict);
    result_.ok = verdict.ok;
    result_.error_limit = verdict.limit;
    result_.why_not = verdict.why_not;
  }
  const auto ok = crew_->max_over_ranks({is_first() && result_.ok ? 1.0 : 0.0});
  if (!ok.ok()) return ok.status();
  result_.ok = ok->front() > 0;
  baseline_.clear();
  return {};
}

Status RankRun::time_site(const model::Site& site, SiteResult* result) {
  progress_.begin("timing " + site.name, kSiteWeight);
  std::vector<std::string> names;
  std::vector<spec::Schedule> schedules;
  for (const auto purpose : {spec::Purpose::compute, spec::Purpose::comm, spec::Purpose::limit}) {
    names.emplace_back(spec::name_of(purpose));
    schedules.push_back(make(site, purpose));
  }
  for (const std::string_view family : {spec::kSerial, spec::kLibrary}) {
    if (family == spec::kLibrary && !has_library()) continue;
    names.emplace_back(family);
    schedules.push_back(make(site, family));
  }
  const spec::Schedule& chosen = chosen_.at(site.name);
  const auto same = std::find(schedules.begin(), schedules.end(), chosen);
  const auto chosen_at = static_cast<size_t>(same - schedules.begin());
  if (same == schedules.end()) {
    names.push_back("overlapped");
    schedules.push_back(chosen);
  }
  std::vector<tuning::Competitor> competitors;
  for (size_t i = 0; i < names.size(); ++i) {
    competitors.push_back({names[i], [this, &site, schedule = &schedules[i]](int iterations) {
                             return stack_->run_site(site.name, *schedule, iterations);
                           }});
  }
  tuning::MeasureOptions options;
  options.repetitions = plan_.repetitions;
  options.burst_us = plan_.backend == Backend::cuda_peer ? 50000 : 20000;
  options.seed = plan_.problem.seed;
  const auto timings = tuning::measure(
      competitors, *crew_, options, [&](int done, int total) { progress_.update(static_cast<double>(done) / total); });
  if (!timings.ok()) return timings.status();
  const auto us = [&](size_t i) { return (*timings)[i].median_us; };
  SiteTimes& t = result->times;
  t.compute_us = us(0);
  t.comm_us = team_.size() == 1 ? 0 : us(1);
  const size_t library_at = has_library() ? 4 : 3;
  t.library_us = has_library() ? us(library_at) : 0;
  t.serial_us = std::min(us(3), us(library_at));
  t.limit_us = std::min(us(2), t.serial_us);
  t.overlapped_us = us(chosen_at);
  best_serial_[site.name] = schedules[us(3) <= us(library_at) ? 3 : library_at];
  return {};
}

Status RankRun::time_layers() {
  progress_.begin("timing all layers", kTotalWeight);
  tuning::MeasureOptions options;
  options.repetitions = plan_.repetitions;
  options.burst_us = plan_.backend == Backend::cuda_peer ? 100000 : 20000;
  options.seed = plan_.problem.seed + 1;
  SiteSchedules without_dependence;
  for (const model::Site& site : plan_.sites) without_dependence[site.name] = make(site, spec::Purpose::limit);
  std::vector<tuning::Competitor> ways = {
      {"overlapped", [&](int iterations) { return stack_->run_layers(chosen_, iterations); }}};
  if (!plan_.sites.empty()) {  // else all are the same work
    ways.push_back({"serial", [&](int iterations) { return stack_->run_layers(best_serial_, iterations); }});
    ways.push_back({"limit", [&](int iterations) { return stack_->run_layers(without_dependence, iterations); }});
  }
  const auto timings = tuning::measure(
      ways, *crew_, options, [&](int done, int total) { progress_.update(static_cast<double>(done) / total); });
  if (!timings.ok()) return timings.status();
  result_.total_overlapped_us = timings->front().median_us;
  result_.total_serial_us = timings->at(plan_.sites.empty() ? 0 : 1).median_us;
  result_.stack_limit_us = std::min(timings->back().median_us, result_.total_serial_us);
  return {};
}

/// How long what streams and what moves takes in steady state, and how long the layers wait for it.
Status RankRun::time_weights() {
  if (plan_.problem.device_bytes == 0) return {};
  progress_.begin("timing what streams", kStreamWeight);
  OVERLACE_TRY(stack_->run_layers(chosen_, 1));
  OVERLACE_TRY(stack_->synchronize());
  const model::WeightStats before = stack_->weight_stats();
  const model::ActivationStats moved_before = stack_->activation_stats();
  OVERLACE_TRY(stack_->run_layers(chosen_, plan_.repetitions));
  OVERLACE_TRY(stack_->synchronize());
  const model::WeightStats after = stack_->weight_stats();
  const model::ActivationStats moved = stack_->activation_stats();
  const auto us_a_pass = [&](double seconds) {
    return seconds * 1e6 / static_cast<double>(after.passes - before.passes);
  };
  const auto slowest = crew_->max_over_ranks(
      {us_a_pass(after.transfer_s - before.transfer_s), us_a_pass(after.waited_s - before.waited_s),
       us_a_pass(after.disk_s - before.disk_s), us_a_pass(moved.transfer_s - moved_before.transfer_s),
       us_a_pass(moved.waited_s - moved_before.waited_s), static_cast<double>(moved.resting_bytes)});
  if (!slowest.ok()) return slowest.status();
  WeightsResult weights;
  weights.source = plan_.problem.from_disk ? "disk" : "host";
  weights.device_bytes = plan_.problem.device_bytes;
  weights.layer_bytes = after.layer_bytes;
  weights.resident_layers = after.resident_layers;
  weights.streamed_layers = after.streamed_layers;
  weights.transfer_us = slowest->at(0);
  weights.waited_us = slowest->at(1);
  weights.disk_us = slowest->at(2);
  result_.weights = weights;
  if (slowest->at(5) > 0)
    result_.activations = ActivationsResult{static_cast<int64_t>(slowest->at(5)), slowest->at(3), slowest->at(4)};
  return {};
}

/// The same layers once more after everything else ran: stale signals, overruns and races would show here.
Status RankRun::repeat_forward() {
  const bool deterministic =
      std::all_of(chosen_.begin(), chosen_.end(), [](const auto& s) { return s.second.deterministic; });
  std::vector<float> again;
  const auto whole = whole_output(chosen_, &again);
  if (!whole.ok()) return whole.status();
  double differing = 0;
  for (size_t i = 0; deterministic && i < again.size(); ++i)
    differing += std::memcmp(&again[i], &my_output_[i], sizeof(float)) != 0 ? 1 : 0;
  const auto most = crew_->max_over_ranks({differing});
  if (!most.ok()) return most.status();
  if (most->front() > 0 && result_.ok) {
    result_.ok = false;
    result_.why_not = base::format("the same layers run again differ in up to {} elements a rank", most->front());
  }
  return {};
}

Result<base::Trace> RankRun::trace_pass(const SiteSchedules& schedules, const char* title) {
  base::Trace mine;
  exec::set_trace(*channel_, &mine);
  Status status = crew_->synchronize();
  if (status.ok()) status = stack_->take_transfers().status();
  if (status.ok()) status = crew_->barrier();
  if (status.ok()) status = stack_->run_layers(schedules, 1);
  if (status.ok()) status = crew_->synchronize();
  if (status.ok()) {
    auto recorded = exec::collect_trace(*channel_);
    status = recorded.ok() ? Status() : recorded.status();
    if (status.ok()) mine.merge(std::move(*recorded));
  }
  if (status.ok()) {
    auto transfers = stack_->take_transfers();
    status = transfers.status();
    for (base::Span& span : transfers.ok() ? *transfers : std::vector<base::Span>()) {
      span.rank = team_.rank();
      mine.spans.push_back(std::move(span));
    }
  }
  exec::set_trace(*channel_, nullptr);
  OVERLACE_TRY(std::move(status));
  const auto parts = gather(team_, mine.to_json());
  if (!parts.ok()) return parts.status();
  base::Trace all;
  for (const std::string& part : *parts) {
    auto trace = base::Trace::from_json(part);
    if (!trace.ok()) return trace.status();
    all.merge(std::move(*trace));
  }
  all.title = base::format("{} {}", plan_.config.name, title);
  all.emulated = plan_.is_emulated();
  exec::join_arrows(all);
  return all;
}

Status RankRun::trace() {
  if (options_.trace.empty() && options_.report.empty()) return {};
  progress_.begin("recording the timeline", kTraceWeight);
  std::vector<base::Trace> serial, overlapped;
  for (int pass = 0; pass < std::min(plan_.repetitions, kMostTraces); ++pass) {
    auto one = trace_pass(best_serial_, "serial");
    if (!one.ok()) return one.status();
    serial.push_back(std::move(*one));
    one = trace_pass(chosen_, "overlapped");
    if (!one.ok()) return one.status();
    overlapped.push_back(std::move(*one));
    progress_.update((pass + 1.0) / kMostTraces);
  }
  if (serial.empty()) return {};
  serial_trace_ = std::move(serial[most_typical(serial, result_.total_serial_us)]);
  overlapped_trace_ = std::move(overlapped[most_typical(overlapped, result_.total_overlapped_us)]);
  return {};
}

Result<bool> RankRun::run() {
  OVERLACE_TRY(open());
  OVERLACE_TRY(choose());
  OVERLACE_TRY(check());
  // A wrong result is not timed (docs/reference/benchmarks.md), but it is reported.
  if (result_.ok) {
    for (size_t i = 0; i < plan_.sites.size(); ++i) OVERLACE_TRY(time_site(plan_.sites[i], &result_.sites[i]));
    if (result_.sites.size() > plan_.sites.size()) OVERLACE_TRY(time_experts(&result_.sites.back()));
    OVERLACE_TRY(time_layers());
    OVERLACE_TRY(time_weights());
    OVERLACE_TRY(trace());
    OVERLACE_TRY(repeat_forward());
  }
  progress_.clear();
  Status written;
  if (is_first()) {
    written = write_outputs(
        options_, {result_, output_, plan_.config.hidden, std::move(serial_trace_), std::move(overlapped_trace_)});
  }
  OVERLACE_TRY(agree_on(team_, written));
  return result_.ok;
}

}  // namespace

Result<bool> run_rank(const RunOptions& options, const RunPlan& plan, Bootstrap& bootstrap, bool* has_opened) {
  try {
    RuntimeOptions wanted = RuntimeOptions::from_environment();
    wanted.backend = plan.backend;
    wanted.link = plan.link;
    if (wanted.heap_bytes == 0) wanted.heap_bytes = heap_bytes(plan).value();
    Runtime runtime = Runtime::open(bootstrap, wanted);
    if (has_opened != nullptr) *has_opened = true;
    Result<bool> result = [&]() -> Result<bool> {
      try {
        return RankRun(options, plan, runtime).run();
      } catch (...) {
        return base::status_of_current_exception();
      }
    }();
    if (!result.ok()) {
      runtime.abort(result.status().code(), result.status().message());
    }
    runtime.close();
    return result;
  } catch (...) {
    return base::status_of_current_exception();
  }
}

}  // namespace overlace::cli
