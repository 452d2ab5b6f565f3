// CO2 of the C API, and the planner of tau.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "overlace/capi_co2.h"
#include "src/base/trace.h"
#include "src/capi/convert.h"
#include "src/capi/handles.h"
#include "src/train/co2/replica.h"
#include "src/train/co2/timing.h"

using namespace overlace;        // NOLINT(google-build-using-namespace): this file is the edge of it
using namespace overlace::capi;  // NOLINT(google-build-using-namespace)

namespace {

/// The caller's functions as a transport. What they return becomes an exception of that code.
class GivenCollective final : public AsyncCollective {
 public:
  explicit GivenCollective(const ovl_collective& given) : given_(given) {}
  std::string name() const override { return "given"; }
  int rank() const override { return given_.rank; }
  int size() const override { return given_.size; }
  CollectiveCaps caps() const override { return {}; }

  Ticket all_reduce(const Bucket& bucket, StreamRef) override {
    uint64_t number = 0;
    const int64_t now = now_ns();
    check(given_.all_reduce(given_.user, bucket.data, bucket.count, static_cast<int32_t>(bucket.dtype),
                            bucket.what.c_str(), &number),
          bucket);
    open_.push_back({bucket, number, {.launched_ns = now}});
    for (; open_.size() > kKept && open_.front().times.complete_ns > 0; ++first_) open_.pop_front();
    return {first_ + open_.size() - 1};
  }
  TicketState poll(Ticket ticket) override {
    return find(ticket).times.complete_ns > 0 ? TicketState::complete : TicketState::pending;
  }
  void order_after(Ticket ticket, StreamRef) override { wait(ticket, 300000); }
  void wait(Ticket ticket, int64_t timeout_ms) override {
    Job& job = find(ticket);
    if (job.times.complete_ns > 0) return;
    check(given_.wait(given_.user, job.number, timeout_ms), job.bucket);
    // NOTE: when it was complete before somebody asked is not known.
    job.times.complete_ns = now_ns();
  }
  TicketTimes times(Ticket ticket) override { return find(ticket).times; }
  void abort(Errc code, std::string_view why) override {
    if (given_.abort != nullptr) (void)given_.abort(given_.user, static_cast<int>(code), std::string(why).c_str());
  }

 private:
  struct Job {
    Bucket bucket;
    uint64_t number;
    TicketTimes times;
  };
  static int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  Job& find(Ticket ticket) {
    OVERLACE_ASSERT(ticket.number >= first_ && ticket.number < first_ + open_.size());
    return open_[ticket.number - first_];
  }
  void check(int code, const Bucket& bucket) const {
    if (code == OVL_OK) return;
    const bool is_known = code > OVL_OK && code <= OVL_INTERNAL;
    throw_error(
        is_known ? static_cast<Errc>(code) : Errc::engine,
        base::format("all-reduce of {}: rank {} of {}, {} bytes: the caller's transport returned {} ({})", bucket.what,
                     given_.rank, given_.size, bucket.count * dtype_bytes(bucket.dtype), code, ovl_error_name(code)));
  }

  static constexpr size_t kKept = 4096;
  const ovl_collective given_;
  std::deque<Job> open_;
  uint64_t first_ = 1;
};

struct Co2Object : Object {
  static constexpr std::string_view kName = "co2";
  std::mutex busy;
  std::unique_ptr<Bootstrap> bootstrap;
  std::unique_ptr<AsyncCollective> collective;
  std::unique_ptr<train::Replica> replica;
  std::string saved, traced;
  bool is_emulated = false;
};

base::Status check_range(std::string_view field, int32_t value, int32_t last) {
  if (value >= 0 && value <= last) return {};
  return base::invalid_argument("ovl_co2_open: options.{} is {}, wanted 0 to {}", field, value, last);
}

base::Result<train::ReplicaOptions> options_of(const ovl_co2_options* given) {
  OVERLACE_TRY(check_struct({"ovl_co2_open", "options"}, given));
  OVERLACE_TRY(check_range("rule", given->rule, OVL_CO2_STREAMING));
  OVERLACE_TRY(check_range("gap", given->gap, OVL_CO2_GAP_ADAPTIVE));
  OVERLACE_TRY(check_range("clip", given->clip, OVL_CO2_CLIP_RELATIVE));
  const base::Result<DType> wire = dtype_of({"ovl_co2_open", "options.wire_dtype"}, given->wire_dtype);
  if (!wire.ok()) return wire.status();
  train::ReplicaOptions options;
  options.co2 = {.rule = static_cast<OuterRule>(given->rule),
                 .tau = given->tau,
                 .outer_lr = given->outer_lr,
                 .outer_momentum = given->outer_momentum,
                 .kappa = given->kappa,
                 .keep = given->keep,
                 .fragments = given->fragments,
                 .delay = given->delay,
                 .mix = given->mix,
                 .gap = static_cast<StalenessGap>(given->gap),
                 .gap_value = given->gap_value,
                 .clip = static_cast<MomentumClip>(given->clip),
                 .phi = given->phi,
                 .warmup_sync_steps = given->warmup_sync_steps,
                 .cooldown_sync_steps = given->cooldown_sync_steps,
                 .total_steps = given->total_steps,
                 .check_every = given->check_every,
                 .samples = given->samples};
  OVERLACE_TRY(check_range("momentum_over_lr", given->momentum_over_lr, 1));
  options.co2.momentum_over_lr = given->momentum_over_lr != 0;
  if (given->num_scheduled > 0) OVERLACE_TRY(check_not_null({"ovl_co2_open", "options.schedule"}, given->schedule));
  for (uint64_t i = 0; i < given->num_scheduled; ++i)
    options.co2.schedule.push_back(
        {given->schedule[i].tau, given->schedule[i].outer_lr, given->schedule[i].outer_momentum});
  options.wire_dtype = *wire;
  if (given->bucket_bytes != 0) options.bucket_bytes = given->bucket_bytes;
  if (given->timeout_ms != 0) options.timeout_ms = given->timeout_ms;
  OVERLACE_TRY(check_range("auto_timeout", given->auto_timeout, 1));
  options.is_deadline_auto = given->auto_timeout != 0;
  OVERLACE_TRY(check_range("whole_boundaries", given->whole_boundaries, 1));
  options.is_boundary_whole = given->whole_boundaries != 0;
  options.threads = given->threads;
  OVERLACE_TRY(check_range("on_device", given->on_device, 1));
  if (given->on_device != 0) {
    if (given->device < 0)
      return base::invalid_argument("ovl_co2_open: options.device is {}, wanted 0 or more", given->device);
    options.device = given->device;
    options.stream = given->stream;
  }
  if (given->shard_degree != 0) options.shard_degree = given->shard_degree;
  if (given->reduce_in_group != nullptr) {
    auto* const reduce = given->reduce_in_group;
    void* const user = given->user;
    options.reduce_in_group = [reduce, user](std::span<double> values) {
      if (const int code = reduce(user, values.data(), values.size()); code != OVL_OK)
        throw_error(Errc::engine,
                    base::format("reduce_in_group of the caller returned {} for {} values", code, values.size()));
    };
  }
  if (given->average_inner != nullptr) {
    auto* const average = given->average_inner;
    void* const user = given->user;
    options.average_inner = [average, user] {
      if (const int code = average(user); code != OVL_OK)
        throw_error(Errc::engine, base::format("average_inner of the caller returned {}", code));
    };
  }
  return options;
}

base::Result<std::vector<train::Parameter>> parameters_of(const ovl_co2_parameter* given, uint64_t count) {
  std::vector<train::Parameter> all;
  if (count > 0) OVERLACE_TRY(check_not_null({"ovl_co2_open", "parameters"}, given));
  for (uint64_t i = 0; i < count; ++i) {
    OVERLACE_TRY(check_not_null({"ovl_co2_open", "parameters[].name"}, given[i].name));
    const base::Result<DType> dtype = dtype_of({"ovl_co2_open", "parameters[].dtype"}, given[i].dtype);
    if (!dtype.ok()) return dtype.status();
    all.push_back({.name = given[i].name,
                   .data = given[i].data,
                   .dtype = *dtype,
                   .count = given[i].count,
                   .group_count = given[i].group_count});
  }
  return all;
}

/// `connect` makes the transport, after everything local was checked.
base::Status open(const ovl_co2_options* given, const ovl_co2_parameter* parameters, uint64_t count, ovl_co2** co2,
                  const std::function<base::Status(Co2Object&)>& connect) {
  OVERLACE_TRY(check_not_null({"ovl_co2_open", "co2"}, co2));
  const base::Result<train::ReplicaOptions> options = options_of(given);
  if (!options.ok()) return options.status();
  base::Result<std::vector<train::Parameter>> all = parameters_of(parameters, count);
  if (!all.ok()) return all.status();
  (void)train::checked_options(*options, *all);
  auto object = std::make_shared<Co2Object>();
  OVERLACE_TRY(connect(*object));
  object->replica = std::make_unique<train::Replica>(*options, std::move(*all), *object->collective);
  give(std::move(object), co2);
  return {};
}

/// Finds the handle and does `body` with it, one thread at a time.
template <class Body>
int with_co2(std::string_view call, ovl_co2* handle, Body body) noexcept {
  return guarded([&]() -> base::Status {
    const base::Result<std::shared_ptr<Co2Object>> found = find<Co2Object>({call, "co2"}, handle);
    if (!found.ok()) return found.status();
    const std::unique_lock lock((*found)->busy, std::try_to_lock);
    if (!lock) return base::invalid_argument("{}: another thread uses this handle, wanted: one at a time", call);
    return body(**found);
  });
}

}  // namespace

int ovl_co2_open_host(const ovl_co2_options* options, const ovl_co2_parameter* parameters, uint64_t num_parameters,
                      const ovl_given* given, const ovl_options* runtime, ovl_co2** co2) {
  return guarded([&] {
    return open(options, parameters, num_parameters, co2, [&](Co2Object& object) -> base::Status {
      base::Result<std::unique_ptr<Bootstrap>> bootstrap = bootstrap_of("ovl_co2_open_host", given);
      if (!bootstrap.ok()) return bootstrap.status();
      base::Result<RuntimeOptions> wanted = capi::options_of("ovl_co2_open_host", runtime);
      if (!wanted.ok()) return wanted.status();
      // How far groups may be apart is for the deadline of a wait, which begins at its boundary.
      constexpr int64_t kDayMs = 86400000;
      HostCollectiveOptions host{.runtime = *wanted, .meet_timeout_ms = kDayMs};
      host.runtime.backend = Backend::cpu;
      if (options->on_device != 0) host.device = options->device;
      object.is_emulated = runtime != nullptr && runtime->link != nullptr && *runtime->link != 0;
      object.bootstrap = std::move(*bootstrap);
      object.collective = open_host_collective(*object.bootstrap, host);
      return {};
    });
  });
}

int ovl_co2_open_nccl(const ovl_co2_options* options, const ovl_co2_parameter* parameters, uint64_t num_parameters,
                      const ovl_given* given, int32_t max_ctas, ovl_co2** co2) {
  return guarded([&] {
    return open(options, parameters, num_parameters, co2, [&](Co2Object& object) -> base::Status {
      constexpr std::string_view kCall = "ovl_co2_open_nccl";
      if (options->on_device == 0)
        return base::invalid_argument("{}: options.on_device is 0, wanted 1: NCCL sums memory of GPUs", kCall);
      if (max_ctas < 0 || max_ctas > 64)
        return base::invalid_argument("{}: max_ctas is {}, wanted 0 to 64", kCall, max_ctas);
      base::Result<std::unique_ptr<Bootstrap>> bootstrap = bootstrap_of(kCall, given);
      if (!bootstrap.ok()) return bootstrap.status();
      NcclCollectiveOptions nccl{.device = options->device, .timeout_ms = options->timeout_ms};
      if (max_ctas > 0) nccl.max_ctas = max_ctas;
      object.bootstrap = std::move(*bootstrap);
      object.collective = open_nccl_collective(*object.bootstrap, nccl);
      return {};
    });
  });
}

int ovl_co2_device_transports(int32_t* host, int32_t* nccl) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_co2_device_transports";
    OVERLACE_TRY(check_not_null({kCall, "host"}, host));
    OVERLACE_TRY(check_not_null({kCall, "nccl"}, nccl));
    const DeviceTransports found = device_transports();
    *host = found.host ? 1 : 0;
    *nccl = found.nccl ? 1 : 0;
    return {};
  });
}

int ovl_co2_open_collective(const ovl_co2_options* options, const ovl_co2_parameter* parameters,
                            uint64_t num_parameters, const ovl_collective* collective, ovl_co2** co2) {
  return guarded([&] {
    return open(options, parameters, num_parameters, co2, [&](Co2Object& object) -> base::Status {
      constexpr std::string_view kCall = "ovl_co2_open_collective";
      OVERLACE_TRY(check_struct({kCall, "collective"}, collective));
      OVERLACE_TRY(check_not_null({kCall, "collective.all_reduce"}, reinterpret_cast<void*>(collective->all_reduce)));
      if (options->on_device != 0)
        return base::invalid_argument("{}: options.on_device is 1, wanted 0: memory of the host", kCall);
      OVERLACE_TRY(check_not_null({kCall, "collective.wait"}, reinterpret_cast<void*>(collective->wait)));
      if (collective->size < 1 || collective->rank < 0 || collective->rank >= collective->size)
        return base::invalid_argument("{}: rank {} of {}, wanted one of at least 1", kCall, collective->rank,
                                      collective->size);
      object.collective = std::make_unique<GivenCollective>(*collective);
      return {};
    });
  });
}

int ovl_co2_abort(ovl_co2* co2, const char* why) {
  return with_co2("ovl_co2_abort", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_abort", "why"}, why));
    object.collective->abort(
        Errc::aborted, base::format("rank {} of {}: {}", object.collective->rank(), object.collective->size(), why));
    return {};
  });
}

int ovl_co2_close(ovl_co2* co2) {
  return with_co2("ovl_co2_close", co2, [&](Co2Object& object) -> base::Status {
    Registry::instance().remove(number_of(co2));
    object.replica.reset();
    object.collective.reset();
    return {};
  });
}

int ovl_co2_wants_gradient_mean(ovl_co2* co2, int32_t* wants) {
  return with_co2("ovl_co2_wants_gradient_mean", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_wants_gradient_mean", "wants"}, wants));
    *wants = object.replica->wants_gradient_mean() ? 1 : 0;
    return {};
  });
}

int ovl_co2_use_stream(ovl_co2* co2, void* stream) {
  return with_co2("ovl_co2_use_stream", co2, [&](Co2Object& object) -> base::Status {
    object.replica->use(stream);
    return {};
  });
}

int ovl_co2_needs_parameters(ovl_co2* co2, int32_t* needs) {
  return with_co2("ovl_co2_needs_parameters", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_needs_parameters", "needs"}, needs));
    *needs = object.replica->needs_parameters() ? 1 : 0;
    return {};
  });
}

int ovl_co2_on_inner_step(ovl_co2* co2, double lr) {
  return with_co2("ovl_co2_on_inner_step", co2, [&](Co2Object& object) -> base::Status {
    if (!std::isfinite(lr) || lr < 0)
      return base::invalid_argument("ovl_co2_on_inner_step: lr is {}, wanted 0 or more", lr);
    object.replica->on_inner_step(lr);
    return {};
  });
}

int ovl_co2_round(ovl_co2* co2, int64_t* round) {
  return with_co2("ovl_co2_round", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_round", "round"}, round));
    *round = object.replica->round();
    return {};
  });
}

int ovl_co2_flush(ovl_co2* co2) {
  return with_co2("ovl_co2_flush", co2, [&](Co2Object& object) -> base::Status {
    object.replica->flush();
    return {};
  });
}

int ovl_co2_writes(ovl_co2* co2, int64_t* writes) {
  return with_co2("ovl_co2_writes", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_writes", "writes"}, writes));
    *writes = object.replica->writes();
    return {};
  });
}

int ovl_co2_anchor(ovl_co2* co2, float* data, uint64_t count) {
  return with_co2("ovl_co2_anchor", co2, [&](Co2Object& object) -> base::Status {
    const auto wanted = static_cast<uint64_t>(object.replica->elements());
    if (count != wanted) return base::invalid_argument("ovl_co2_anchor: count is {}, wanted {}", count, wanted);
    if (count > 0) OVERLACE_TRY(check_not_null({"ovl_co2_anchor", "data"}, data));
    object.replica->copy_anchor({data, count});
    return {};
  });
}

int ovl_co2_stats_last(ovl_co2* co2, ovl_co2_stats* stats) {
  return with_co2("ovl_co2_stats_last", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_struct({"ovl_co2_stats_last", "stats"}, stats));
    stats->rounds = object.replica->rounds_taken_in();
    if (object.replica->stats().empty()) return {};
    const train::RoundStats& last = object.replica->stats().back();
    stats->round = last.round;
    stats->steps = last.steps;
    stats->bytes = last.bytes;
    stats->round_ms = last.round_ms;
    stats->comm_ms = last.comm_ms;
    stats->exposed_ms = last.exposed_ms;
    stats->pass_ms = last.pass_ms;
    stats->lambda = last.lambda;
    stats->clipped = last.clipped;
    stats->increment_norm = last.increment_norm;
    stats->mean_norm = last.mean_norm;
    stats->momentum_norm = last.momentum_norm;
    stats->last_rank = last.last_rank;
    stats->is_dropped = last.is_dropped ? 1 : 0;
    stats->link_bytes = last.link_bytes;
    return {};
  });
}

int ovl_co2_trace(ovl_co2* co2, int32_t rank, const char** text) {
  return with_co2("ovl_co2_trace", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_trace", "text"}, text));
    if (rank < 0) return base::invalid_argument("ovl_co2_trace: rank is {}, wanted 0 or more", rank);
    base::Trace trace = object.replica->trace();
    trace.emulated = object.is_emulated;
    for (base::Span& span : trace.spans) span.rank = rank;
    object.traced = trace.to_json();
    *text = object.traced.c_str();
    return {};
  });
}

int ovl_co2_trace_write(const char* const* texts, uint64_t count, const char* path) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_co2_trace_write";
    OVERLACE_TRY(check_not_null({kCall, "path"}, path));
    if (count == 0) return base::invalid_argument("{}: count is 0, wanted at least 1", kCall);
    OVERLACE_TRY(check_not_null({kCall, "texts"}, texts));
    base::Trace whole;
    for (uint64_t i = 0; i < count; ++i) {
      OVERLACE_TRY(check_not_null({kCall, "texts[]"}, texts[i]));
      base::Result<base::Trace> one = base::Trace::from_json(texts[i], base::format("{}: texts[{}]", kCall, i));
      if (!one.ok()) return one.status();
      if (i == 0) whole.title = one->title;
      whole.merge(std::move(*one));
    }
    return base::write_trace(whole, path);
  });
}

int ovl_co2_save(ovl_co2* co2, const void** data, uint64_t* bytes) {
  return with_co2("ovl_co2_save", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_save", "data"}, data));
    OVERLACE_TRY(check_not_null({"ovl_co2_save", "bytes"}, bytes));
    object.saved = object.replica->save();
    *data = object.saved.data();
    *bytes = object.saved.size();
    return {};
  });
}

int ovl_co2_load(ovl_co2* co2, const void* data, uint64_t bytes) {
  return with_co2("ovl_co2_load", co2, [&](Co2Object& object) -> base::Status {
    OVERLACE_TRY(check_not_null({"ovl_co2_load", "data"}, data));
    return object.replica->load({static_cast<const char*>(data), bytes});
  });
}

int ovl_co2_plan_tau(ovl_co2_plan* plan) {
  return guarded([&]() -> base::Status {
    constexpr std::string_view kCall = "ovl_co2_plan_tau";
    OVERLACE_TRY(check_struct({kCall, "plan"}, plan));
    if (plan->shard_degree < 1 || plan->groups < 1)
      return base::invalid_argument("{}: {} groups of {} ranks, wanted at least 1 of 1", kCall, plan->groups,
                                    plan->shard_degree);
    const auto is_within = [](double value, double least, double most) { return value >= least && value <= most; };
    if (!is_within(plan->link_bytes_per_s, 1e7, 1e15) || !is_within(plan->link_latency_us, 0, 1e6))
      return base::invalid_argument("{}: link of {} B/s and {} us, wanted 1e7 to 1e15 and 0 to 1e6", kCall,
                                    plan->link_bytes_per_s, plan->link_latency_us);
    if (!is_within(plan->parameters / plan->shard_degree, 1, 1e14) || !(plan->wire_bytes > 0) ||
        !(plan->wire_bytes <= 8) || !is_within(plan->step_ms, 1e-3, 1e6))
      return base::invalid_argument(
          "{}: {} parameters of {} bytes over {} ranks, step of {} ms, wanted 1 to 1e14 a rank, up to 8, 1e-3 to 1e6",
          kCall, plan->parameters, plan->wire_bytes, plan->shard_degree, plan->step_ms);
    if (plan->tau < 0 || plan->tau > 1000000000)
      return base::invalid_argument("{}: tau is {}, wanted 0 to 1e9", kCall, plan->tau);
    // Each shard has a link of its own to its peers in the other groups.
    const double bytes = plan->parameters / plan->shard_degree * plan->wire_bytes, step_us = plan->step_ms * 1e3;
    const double all_reduce_us =
        train::all_reduce_us({plan->groups, plan->link_bytes_per_s / 1e6, plan->link_latency_us}, bytes);
    ovl_co2_plan out = *plan;
    out.all_reduce_ms = all_reduce_us / 1e3;
    const train::TauPlan found = train::plan_tau(step_us, all_reduce_us);
    out.tau_min = found.tau_min;
    std::copy(found.taus.begin(), found.taus.end(), out.taus);
    std::copy(found.exposed.begin(), found.exposed.end(), out.exposed);
    out.exposed_of_tau = plan->tau > 0 ? train::exposed_share(plan->tau, step_us, all_reduce_us) : 0;
    *plan = out;
    return {};
  });
}
