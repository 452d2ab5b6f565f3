#include "src/train/co2/replica.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>

#include "src/base/log.h"
#include "src/runtime/clock.h"
#include "src/runtime/hash.h"
#include "src/train/co2/options.h"

namespace overlace::train {
namespace {

using runtime::hash_text;
using runtime::hash_word;
using runtime::now_ns;

uint64_t hash_bytes(const void* data, size_t bytes, uint64_t hash = runtime::kHashSeed) {
  const char* from = static_cast<const char*>(data);
  uint64_t word = 0;
  for (; bytes >= sizeof word; bytes -= sizeof word, from += sizeof word) {
    std::memcpy(&word, from, sizeof word);
    hash = (hash ^ word) * 0x100000001b3ull;
    hash ^= hash >> 29;
  }
  return hash_text({from, bytes}, hash);
}

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

std::vector<int64_t> counts_of(const std::vector<Parameter>& parameters) {
  std::vector<int64_t> counts;
  for (const Parameter& parameter : parameters) counts.push_back(parameter.count);
  return counts;
}

/// A fragment has a bucket of its own at least, if there are parameters enough.
int64_t bucket_elements(const ReplicaOptions& options, const std::vector<Parameter>& parameters) {
  int64_t total = 0;
  for (const Parameter& parameter : parameters) total += parameter.count;
  const int64_t most = options.bucket_bytes /
                       static_cast<int64_t>(dtype_bytes(options.wire_dtype == DType::bf16 ? DType::bf16 : DType::fp32));
  return std::clamp(total / options.co2.fragments, int64_t{1}, most);
}

/// Memory that others may write to as long as the process lives.
void keep_for_ever(std::shared_ptr<void> memory) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace

ReplicaOptions checked_options(const ReplicaOptions& given, const std::vector<Parameter>& parameters) {
  ReplicaOptions options = given;
  const base::Result<Co2Options> resolved = resolve(given.co2);
  resolved.status().or_throw();
  options.co2 = *resolved;
  const auto refuse = [](const std::string& text) { throw_error(Errc::invalid_argument, text); };
  if (parameters.empty()) refuse("parameters: none are trainable, wanted: at least one");
  if (options.shard_degree < 1) refuse(base::format("shard_degree is {}, wanted: at least 1", options.shard_degree));
  if (options.shard_degree > 1 && !options.reduce_in_group)
    refuse(base::format("reduce_in_group is missing with shard_degree {}", options.shard_degree));
  if (options.co2.cooldown_sync_steps > 0 && !options.average_inner)
    refuse(base::format("average_inner is missing with cooldown_sync_steps {}", options.co2.cooldown_sync_steps));
  if (options.wire_dtype != DType::fp32 && options.wire_dtype != DType::bf16 && options.wire_dtype != DType::i8)
    refuse(base::format("wire_dtype is {}, wanted: fp32, bf16 or i8", dtype_name(options.wire_dtype)));
  if (options.bucket_bytes < 4) refuse(base::format("bucket_bytes is {}, wanted: at least 4", options.bucket_bytes));
  if (options.timeout_ms < 1) refuse(base::format("timeout_ms is {}, wanted: at least 1", options.timeout_ms));
  for (const Parameter& p : parameters) {
    if (p.dtype != DType::fp32 && p.dtype != DType::bf16 && p.dtype != DType::fp16)
      refuse(base::format("parameter {} has dtype {}, wanted: fp32, bf16 or fp16", p.name, dtype_name(p.dtype)));
    if (p.count < 0 || (p.count > 0 && p.data == nullptr))
      refuse(base::format("parameter {} has {} elements at {}, wanted: memory for all of them", p.name, p.count,
                          p.data == nullptr ? "no address" : "an address"));
    if (p.group_count != 0 && p.group_count < p.count)
      refuse(base::format("parameter {} has {} elements here and {} in the group, wanted: at least as many", p.name,
                          p.count, p.group_count));
  }
  return options;
}

Replica::Replica(const ReplicaOptions& options, std::vector<Parameter> parameters, AsyncCollective& outer)
    : options_(checked_options(options, parameters)),
      parameters_(std::move(parameters)),
      outer_(outer),
      buckets_(make_buckets(counts_of(parameters_), bucket_elements(options_, parameters_))),
      engine_(options_.co2, outer.size(), static_cast<int>(buckets_.size()), options_.shard_degree,
              fragments_of(buckets_, options_.co2.fragments)),
      threads_(options_.threads),
      bounds_(parameters_.size()),
      sums_(parameters_.size()),
      tickets_(buckets_.size() + 1),
      deadline_(options_.timeout_ms) {
  int64_t total = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    tensors_.push_back({.x = p.data, .dtype = p.dtype, .begin = total, .count = p.count});
    bounds_[i].count = static_cast<double>(p.group_count == 0 ? p.count : p.group_count);
    total += p.count;
  }
  elements_ = total;
  if (options_.device < 0)
    hold_image();
  else
    device_ =
        (options_.open_state ? options_.open_state : open_device_state)({.device = options_.device,
                                                                         .stream = options_.stream,
                                                                         .wire_dtype = kept_dtype(options_.wire_dtype),
                                                                         .has_momentum = has_momentum(),
                                                                         .has_kept = has_kept(),
                                                                         .has_residual = has_residual(),
                                                                         .tensors = tensors_,
                                                                         .buckets = buckets_,
                                                                         .bounds = bounds_});
  config_hash_ = own_hash_ = hash_text(describe());
  if (is_weighted())
    own_hash_ = hash_text(base::format("tau={} samples={}", options_.co2.tau, options_.co2.samples), config_hash_);
  if (const std::string text = warning_of(options_.co2); !text.empty()) base::warn_once("co2", text);
  if (options_.wire_dtype == DType::i8 && !outer_.caps().takes_residuals)
    throw_error(Errc::not_supported,
                base::format("wire_dtype is i8 over transport {}; supported: host", outer_.name()));
  agree_at_start();
  if (device_)
    device_->reset_anchor();
  else
    reset_anchor(tensors_, memory());
  last_boundary_ns_ = now_ns();
  run_due();
}

Replica::~Replica() {
  std::vector<Ticket> open;
  for (const uint64_t ticket : tickets_)
    if (ticket != 0) open.push_back({ticket});
  // A stream may wait for those that boundaries have queued it behind.
  for (const Queued& queued : queued_) waited_.insert(waited_.end(), queued.waited.begin(), queued.waited.end());
  std::copy_if(waited_.begin(), waited_.end(), std::back_inserter(open), [this](Ticket ticket) {
    try {
      return outer_.poll(ticket) != TicketState::complete;
    } catch (const std::exception&) {  // the device is lost
      return true;
    }
  });
  if (open.empty()) return;
  outer_.abort(
      Errc::aborted,
      base::format("group {} ended training with increments on their way; flush() takes them in", outer_.rank()));
  // A wait has had its deadline: one that cannot be told of an end would only have another.
  bool is_free = !has_failed_ || outer_.caps().frees_on_failure;
  const int64_t end_ms = now_ns() / 1000000 + (is_free ? timeout_ms() : 0);
  for (const Ticket ticket : open) {
    try {
      outer_.wait(ticket, std::max<int64_t>(1, end_ms - now_ns() / 1000000));
    } catch (const std::exception&) {  // what the abort made of it
      is_free = is_free && outer_.caps().frees_on_failure;
    }
    if (!is_free) break;
  }
  if (is_free) return;
  if (device_) device_->leave_memory();
  keep_for_ever(std::make_shared<std::vector<char>>(std::move(wire_)));
  keep_for_ever(std::make_shared<std::vector<float>>(std::move(residual_)));
  keep_for_ever(std::move(header_));
}

std::string Replica::describe() const {
  std::string text =
      to_text(options_.co2) + base::format(" wire={} bucket_bytes={} shard_degree={}", dtype_name(options_.wire_dtype),
                                           options_.bucket_bytes, options_.shard_degree);
  for (const Parameter& p : parameters_) text += base::format("; {} {} {}", p.name, dtype_name(p.dtype), p.count);
  return text;
}

PassMemory Replica::memory() {
  return {.anchor = anchor_.data(),
          .momentum = momentum_.empty() ? nullptr : momentum_.data(),
          .kept = kept_.empty() ? nullptr : kept_.data(),
          .wire = wire_.data(),
          .wire_dtype = kept_dtype(options_.wire_dtype),
          .residual = options_.wire_dtype == DType::bf16 ? residual_.data() : nullptr};
}

Bucket Replica::sent_of(int bucket, int64_t round) {
  const BucketRange& range = buckets_[static_cast<size_t>(bucket)];
  const DType dtype = kept_dtype(options_.wire_dtype);
  char* const wire = device_ ? device_->wire() : wire_.data();
  float* const residual = device_ ? device_->residual() : residual_.data();
  return {.data = wire + static_cast<size_t>(range.begin) * dtype_bytes(dtype),
          .count = static_cast<size_t>(range.count),
          .dtype = dtype,
          .what = base::format("round {}, bucket {}", round, bucket),
          .residual = options_.wire_dtype == DType::i8 ? residual + range.begin : nullptr};
}

/// All groups have the same options and the same values, or PlanMismatch on all of them. Values travel in slots of
/// their own, zeros elsewhere, so that a sum is a gather.
void Replica::agree_at_start() {
  const size_t groups = static_cast<size_t>(outer_.size()), mine = static_cast<size_t>(outer_.rank());
  const auto gather = [&](const std::vector<uint64_t>& hashes, const char* what) {
    const auto memory = std::make_shared<std::vector<double>>(groups * hashes.size() * 2);
    std::vector<double>& slots = *memory;
    for (size_t i = 0; i < hashes.size(); ++i) {
      slots[(mine * hashes.size() + i) * 2] = static_cast<double>(hashes[i] & 0xffffffffu);
      slots[(mine * hashes.size() + i) * 2 + 1] = static_cast<double>(hashes[i] >> 32);
    }
    double* const sent = device_ ? device_->upload_words(slots) : slots.data();
    const Ticket ticket = outer_.all_reduce({sent, slots.size(), DType::fp64, what}, stream());
    try {
      outer_.wait(ticket, options_.timeout_ms);
    } catch (...) {
      if (!outer_.caps().frees_on_failure) {
        keep_for_ever(memory);
        if (device_) device_->leave_memory();
      }
      throw;
    }
    if (device_) device_->download_words(slots);
    std::vector<uint64_t> all;
    for (size_t i = 0; i < slots.size(); i += 2)
      all.push_back(static_cast<uint64_t>(slots[i]) | static_cast<uint64_t>(slots[i + 1]) << 32);
    return all;
  };
  // All groups see the same: none leaves while another one still waits for what it needs to see it.
  const auto refuse = [&](const std::string& text) {
    try {
      (void)gather({0}, "a refusal at the start");
    } catch (const std::exception&) {  // what is refused is known
    }
    throw_error(Errc::plan_mismatch, text);
  };
  // Hashes of parameters on a GPU and on the host differ.
  const std::vector<uint64_t> configs =
      gather({hash_word(device_ == nullptr ? 0 : 1, config_hash_)}, "options at the start");
  for (size_t g = 1; g < groups; ++g)
    if (configs[g] != configs[0])
      refuse(
          base::format("options and parameters' shapes differ between groups 0 and {}: hashes {} and {}; here: {}, {}",
                       g, configs[0], configs[g], device_ == nullptr ? "on the host" : "on a GPU", describe()));
  if (is_weighted())
    for (const uint64_t samples :
         gather({std::bit_cast<uint64_t>(static_cast<double>(options_.co2.tau) * options_.co2.samples)}, "samples"))
      all_samples_ += std::bit_cast<double>(samples);
  std::vector<uint64_t> hashes;
  if (device_) hashes = device_->hashes();
  for (size_t i = 0; device_ == nullptr && i < parameters_.size(); ++i)
    hashes.push_back(
        hash_bytes(parameters_[i].data, static_cast<size_t>(parameters_[i].count) * dtype_bytes(parameters_[i].dtype)));
  const std::vector<uint64_t> all = gather(hashes, "parameters at the start");
  for (size_t i = 0; i < hashes.size(); ++i)
    for (size_t g = 1; g < groups; ++g)
      if (all[g * hashes.size() + i] != all[i])
        refuse(
            base::format("parameter {} differs between groups 0 and {} at the start: hashes {} and {}; wanted: the "
                         "same values in all groups",
                         parameters_[i].name, g, all[i], all[g * hashes.size() + i]));
}

uint64_t Replica::anchor_hash() const {
  if (device_) return device_->anchor_hash();
  return hash_bytes(momentum_.data(), momentum_.size() * sizeof(float),
                    hash_bytes(anchor_.data(), anchor_.size() * sizeof(float)));
}

void Replica::on_inner_step(double lr) {
  lr_sum_ += lr;
  ++lr_steps_;
  engine_.on_inner_step().or_throw();
  run_due();
}

void Replica::flush() {
  engine_.flush().or_throw();
  is_flushing_ = true;
  try {
    run_due();
  } catch (...) {
    is_flushing_ = false;
    throw;
  }
  is_flushing_ = false;
  rounds_.restart(now_ns());
}

/// The exchange of a round is awaited where it is sent.
bool Replica::waits_at_once() const {
  return options_.co2.rule == OuterRule::streaming ? options_.co2.delay == 0 : !is_stale(options_.co2.rule);
}

base::Trace Replica::trace() const {
  return rounds_.trace(outer_.rank(),
                       base::format("rounds of {}, measured", kOuterRuleNames[static_cast<int>(options_.co2.rule)]));
}

void Replica::run_due() {
  try {
    carry_out_due();
  } catch (...) {
    // A failure that this rank knows of has come before that of a call: others may have ended by the same one.
    std::exchange(failure_, {}).or_throw();
    throw;
  }
  // Bad values are an error once the boundary is whole: then the state is that of the last good round. Nobody leaves
  // while another group still waits for what tells it so: what was launched since completes where all have seen it.
  if (!failure_.ok() && device_ == nullptr) {
    try {
      settle();
    } catch (const std::exception&) {  // bad values come before the error of a wait
    }
  }
  std::exchange(failure_, {}).or_throw();
  unsent_.or_throw();
}

void Replica::carry_out_due() {
  const Action::Kind first = engine_.next().kind;
  const bool is_boundary = first != Action::Kind::none && first != Action::Kind::anchor && !is_flushing_;
  if (device_ && first != Action::Kind::none) {
    take_reports();
    device_->mark(DeviceSpan::Kind::steps);
  }
  if (is_boundary && device_ == nullptr) rounds_.end_steps(now_ns());
  for (Action action = engine_.next(); action.kind != Action::Kind::none; action = engine_.next()) {
    carry_out(action);
    engine_.done(action);
  }
  if (is_boundary && device_ == nullptr) rounds_.end_boundary(now_ns());
  if (device_ && (is_flushing_ || waits_on_host())) take_reports();
}

void Replica::carry_out(const Action& action) {
  switch (action.kind) {
    case Action::Kind::wait:
      return wait_for(action.bucket, action.round);
    case Action::Kind::begin:
      return begin(action);
    case Action::Kind::pass:
      return pass(action);
    case Action::Kind::launch:
      return launch(action.bucket, action.round);
    case Action::Kind::moved:
      return moved(action.is_flush);
    case Action::Kind::reduce_sums:
      return reduce_sums();
    case Action::Kind::end:
      return end(action);
    case Action::Kind::anchor:
      if (device_)
        device_->reset_anchor();
      else
        reset_anchor(tensors_, memory());
      lr_sum_ = 0;  // those of a warm-up are of no round
      lr_steps_ = 0;
      return rounds_.restart(now_ns());
    case Action::Kind::average_inner:
      return options_.average_inner();
    case Action::Kind::none:
      return;
  }
}

void Replica::launch(int bucket, int64_t round) {
  Bucket sent{&own_header_, kHeaderWords, DType::fp64, base::format("round {}, header", round)};
  if (bucket == Action::kHeader) {
    if (device_) {
      sent.data = device_->sum();
      if (waits_at_once()) device_->mark(DeviceSpan::Kind::steps);
    } else {
      *header_ = own_header_;
      sent.data = header_.get();
      if (waits_at_once()) rounds_.end_steps(now_ns());
    }
  } else {
    sent = sent_of(bucket, round);
  }
  send(bucket, sent, round);
}

/// What cannot be sent does not end a boundary whose anchor has begun to move.
void Replica::send(int bucket, const Bucket& sent, int64_t round) {
  if (!unsent_.ok()) return;
  try {
    tickets_[slot(bucket)] = outer_.all_reduce(sent, stream()).number;
  } catch (...) {
    if (!options_.is_boundary_whole) throw;
    unsent_ = base::status_of_current_exception();
    unsent_round_ = round;
  }
}

void Replica::wait_for(int bucket, int64_t round) {
  if (round == unsent_round_) unsent_.or_throw();
  // The header is the first that a boundary waits for.
  if (options_.is_boundary_whole && bucket == Action::kHeader)
    for (int other = 0; other < static_cast<int>(buckets_.size()); ++other) wait_for(other, round);
  uint64_t& ticket = tickets_[slot(bucket)];
  if (ticket == 0) return;  // settled by save(), or loaded
  if (!waits_on_host() && round != kNoRound) {
    device_->mark(DeviceSpan::Kind::other);
    has_failed_ = true;  // until it has not
    outer_.order_after({ticket}, stream());
    has_failed_ = false;
    device_->mark(DeviceSpan::Kind::wait);
    waited_.push_back({ticket});
    ticket = 0;
    return;
  }
  const int64_t came_ns = now_ns();
  has_failed_ = true;  // until it has not
  outer_.wait({ticket}, timeout_ms());
  has_failed_ = false;
  const TicketTimes times = outer_.times({ticket});
  if (times.complete_ns > came_ns) {
    current_.exposed_ms += ms(times.complete_ns - came_ns);
    rounds_.wait(came_ns, times.complete_ns);
  }
  note_times({ticket});
  ticket = 0;
}

/// Takes in the times of a ticket that is complete.
void Replica::note_times(Ticket ticket) {
  const TicketTimes times = outer_.times(ticket);
  last_complete_ns_ = std::max(last_complete_ns_, times.complete_ns);
  if (first_launch_ns_ == 0 || times.launched_ns < first_launch_ns_) first_launch_ns_ = times.launched_ns;
  current_.comm_ms = ms(last_complete_ns_ - first_launch_ns_);  // the header, noted first, was launched last
  current_.link_bytes += times.link_bytes;
  if (times.last_rank >= 0) current_.last_rank = times.last_rank;
}

double Replica::next_lr_ratio() {
  if (lr_steps_ == 0) return 1;
  const double mean = lr_sum_ / static_cast<double>(lr_steps_);
  const double ratio = last_mean_lr_ > 0 ? mean / last_mean_lr_ : 1;
  last_mean_lr_ = mean;
  lr_sum_ = 0;
  lr_steps_ = 0;
  return ratio;
}

void Replica::begin(const Action& action) {
  knobs_ = engine_.knobs(action, next_lr_ratio());
  knobs_.all_samples = all_samples_;
  has_incoming_ = engine_.state().has_pending != 0 || !is_stale(options_.co2.rule) || action.is_flush;
  current_.round = static_cast<int64_t>(own_header_.round);
  current_.steps = std::llround(own_header_.steps / (is_weighted() ? options_.co2.samples : 1));
  if (device_) return device_->begin(knobs_, has_incoming_);
  const HeaderPod* const sum = take_header(knobs_, has_incoming_ ? header_.get() : nullptr);
  begin_boundary(control_, bounds_, sums_, sum, own_header_, knobs_);
  failure_ = status_of(control_, *header_, own_header_, knobs_);
  if (failure_.code() == Errc::desync) {
    settle();  // all groups see the same: none leaves while another one still waits
    failure_.or_throw();
  }
  has_incoming_ = control_.verdict != Verdict::none_yet;
}

/// One over the weight of an increment of so many steps; a group that took none sends what rounding left out before.
float Replica::divisor_of(int64_t steps) const {
  if (!is_weighted()) return static_cast<float>(outer_.size());
  return static_cast<float>(all_samples_ / (static_cast<double>(std::max<int64_t>(steps, 1)) * options_.co2.samples));
}

void Replica::pass(const Action& action) {
  const BucketRange& range = buckets_[static_cast<size_t>(action.bucket)];
  const float divisor = divisor_of(action.steps);
  if (device_) {
    device_->mark(DeviceSpan::Kind::other);
    device_->pass(action.mode, divisor, action.bucket);
    device_->mark(DeviceSpan::Kind::pass);
  } else {
    const int64_t begin_ns = now_ns();
    run_pass(threads_, action.mode, control_.pass, divisor, std::span(tensors_).subspan(range.first, range.tensors),
             std::span(bounds_).subspan(range.first, range.tensors), memory(),
             std::span(sums_).subspan(range.first, range.tensors));
    const int64_t end_ns = now_ns();
    current_.pass_ms += ms(end_ns - begin_ns);
    if (!action.is_flush) rounds_.pass(begin_ns, end_ns);
  }
  if (action.mode != PassMode::delta && has_incoming_)
    current_.bytes += static_cast<int64_t>(wire_bytes(sent_of(action.bucket, action.round)));
}

void Replica::moved(bool is_flush) {
  ++writes_;
  const bool is_streaming = options_.co2.rule == OuterRule::streaming;
  if (device_) {
    device_->end(knobs_);
    if (is_streaming) device_->restore_if_dropped();
    device_->report();
    if (is_streaming) device_->forget_sums();
    queued_.push_back({std::exchange(current_, {}), knobs_, std::exchange(waited_, {}), is_flush, is_flushing_});
    return;
  }
  end_boundary(control_, knobs_);
  if (!has_incoming_) return;
  FactsPod facts{.control = control_, .sum = *header_, .own = own_header_};
  for (const SumsPod& sums : sums_) {
    facts.m2 += sums.m2;
    facts.v2 += sums.v2;
    facts.clipped += sums.clipped;
  }
  took_in(facts, knobs_, now_ns(), is_flush);
  // What the inner steps of a dropped exchange made of other fragments goes with it.
  if (is_streaming && control_.verdict == Verdict::bad_values) restore_parameters(tensors_, memory());
  if (is_streaming) forget_sums();
}

/// The figures of a round whose increment is in: what `current_` does not have yet.
void Replica::took_in(const FactsPod& facts, const KnobsPod& knobs, int64_t now, bool is_flush) {
  double count = 0;
  for (const TensorPod& tensor : bounds_) count += tensor.count;
  current_.lambda = facts.control.lambda;
  current_.is_dropped = facts.control.verdict == Verdict::bad_values;
  current_.clipped = count > 0 ? facts.clipped / count : 0;
  current_.momentum_norm = std::sqrt(facts.m2);
  current_.mean_norm = std::sqrt(facts.v2) * knobs.incoming;
  current_.increment_norm = std::sqrt(facts.own.norm2);
  current_.round_ms = ms(now - last_boundary_ns_);
  last_boundary_ns_ = now;
  ++rounds_taken_in_;
  // A flush of streaming exchanges what no round has sent.
  if (first_launch_ns_ > 0 && !(options_.co2.rule == OuterRule::streaming && is_flush))
    rounds_.exchange(first_launch_ns_, last_complete_ns_, current_.bytes);
  deadline_.add(current_.exposed_ms);
  stats_.push_back(current_);
  if (stats_.size() > kKeptRounds) stats_.pop_front();
  current_ = {};
  first_launch_ns_ = last_complete_ns_ = 0;
}

void Replica::reduce_sums() {
  if (device_) return device_->reduce_sums(options_.reduce_in_group, 2 * options_.timeout_ms);
  static_assert(sizeof(SumsPod) == 5 * sizeof(double));
  std::vector<double> flat(sums_.size() * 5);
  std::memcpy(flat.data(), sums_.data(), flat.size() * sizeof(double));
  options_.reduce_in_group(flat);
  std::memcpy(static_cast<void*>(sums_.data()), flat.data(), flat.size() * sizeof(double));
}

void Replica::end(const Action& action) {
  const int64_t every = options_.co2.check_every;
  const bool compares_anchor = every > 0 && action.round % every == 0;
  own_header_ = header_of(sums_, action.round, action.steps, config_hash_,
                          device_ == nullptr && compares_anchor ? anchor_hash() : 0);
  if (is_weighted()) own_header_.steps *= options_.co2.samples;
  if (device_) device_->header(own_header_, compares_anchor);
  if (options_.co2.rule != OuterRule::streaming) return;
  if (device_)
    device_->forget_sums();
  else
    forget_sums();
}

/// An exchange has the sums of its own fragment alone.
void Replica::forget_sums() { std::fill(sums_.begin(), sums_.end(), SumsPod{}); }

void Replica::settle() {
  unsent_.or_throw();
  for (size_t i = 0; i < tickets_.size(); ++i) wait_for(static_cast<int>(i) - 1, kNoRound);
}

}  // namespace overlace::train
