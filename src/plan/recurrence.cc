#include "src/plan/recurrence.h"

#include <algorithm>
#include <cmath>

#include "src/base/ceil_div_pod.h"
#include "src/spec/fused_pod.h"
#include "src/spec/operators.h"

namespace overlace::plan {
namespace {

using spec::ClosedForm;
using spec::Load;

constexpr double kBytesPerUs = 1e3;  // of a GB/s

bool is_fused(ClosedForm form) { return form == ClosedForm::slab_kernel || form == ClosedForm::tile_kernel; }
bool is_grouped(ClosedForm form) { return form == ClosedForm::group || form == ClosedForm::group_shards; }

}  // namespace

Recurrence::Recurrence(const spec::OpSpec& op, const spec::Machine& machine)
    : op_(op),
      machine_(machine),
      is_gather_(spec::gathers(op.op)),
      sums_rows_(spec::flow_of(op.op).sums_rows),
      is_reduced_twice_(spec::returns_to_all(op.op)),
      exchanges_(spec::exchanges(op.op)),
      peers_(op.ranks - 1),
      rows_(spec::rows_of_product(op)),
      shard_(base::ceil_div(rows_, op.ranks)),
      element_(static_cast<double>(dtype_bytes(op.dtype))),
      row_bytes_(is_gather_ ? static_cast<double>(op.k) * element_
                            : static_cast<double>(op.n) * static_cast<double>(dtype_bytes(op.out_dtype))) {
  gemm_us_ = part_us(rows_, 1);
  if (op.activation == spec::Activation::swiglu) {
    const double sums = static_cast<double>(op.m * op.n) * static_cast<double>(dtype_bytes(op.out_dtype));
    activation_us_ = spec::reduce_us(machine, sums + sums / 2);
  }
  if (spec::flow_of(op.op).norms) {  // the sums and the residual, the results and their norm
    const double elements = static_cast<double>(op.m) * static_cast<double>(op.n);
    norm_us_ = machine.latency.launch_us.value + spec::reduce_us(machine, 4 * elements * element_);
  }
  const double passes = is_reduced_twice_ ? 2 : 1;
  transfer_us_ = passes * peers_ * spec::copy_us(machine, static_cast<double>(shard_) * row_bytes_);
}

double Recurrence::product_us(int64_t rows, int64_t batch, int64_t n, int64_t k) const {
  const auto out_bytes = static_cast<int64_t>(dtype_bytes(op_.out_dtype));
  return spec::gemm_cost(machine_, {rows, n, k, batch, static_cast<int64_t>(element_), out_bytes}).us;
}

double Recurrence::part_us(int64_t rows, int64_t batch) const {
  return sums_rows_ ? product_us(op_.k, batch, op_.n, rows) : product_us(rows, batch, op_.n, op_.k);
}

/// Sums of more than one step grow in the accumulator's type.
void Recurrence::add_wide_sums(Steps* steps) const {
  const double sums = static_cast<double>(sums_rows_ ? op_.k : op_.m) * static_cast<double>(op_.n);
  const DType wide = op_.dtype == DType::fp64 ? DType::fp64 : DType::fp32;
  const double bytes = sums * static_cast<double>(dtype_bytes(wide));
  steps->wide = spec::reduce_us(machine_, 2 * bytes);
  if (op_.out_dtype == wide && sums_rows_) return;
  steps->convert = sums_rows_
                       ? spec::reduce_us(machine_, bytes + sums * static_cast<double>(dtype_bytes(op_.out_dtype)))
                       : steps->wide;
}

double Recurrence::host_us(int kernels, int copies, int collectives) const {
  const auto& host = machine_.latency;
  return host.host_call_us.value + kernels * host.host_kernel_us.value + copies * host.host_copy_us.value +
         collectives * host.host_collective_us.value + (copies > 0 ? host.host_lanes_us.value : 0);
}

double Recurrence::triggered_us() const { return machine_.latency.event_us.value + machine_.copy.trigger_us.value; }

ClosedForm Recurrence::form_of(const Candidate& candidate) const { return spec::form_of(op_.op, candidate.family); }

std::optional<Recurrence::Steps> Recurrence::steps_of(const Candidate& candidate) const {
  const ClosedForm form = form_of(candidate);
  const int q = spec::has_degree(candidate.family) ? candidate.degree : 1;
  const bool is_slab = form == ClosedForm::slabs;
  const int64_t cut = is_slab ? (is_gather_ ? op_.k : op_.n) : shard_;
  if (q < 1 || cut < q) return std::nullopt;
  const int64_t chunk = base::ceil_div(shard_, q);
  const double shard_bytes = static_cast<double>(shard_) * row_bytes_;

  Steps out;
  out.chunks = q;
  out.copies = peers_;
  out.copy = spec::copy_us(machine_, shard_bytes / q);
  if (is_slab) out.copy += static_cast<double>(shard_) * machine_.copy.row_us.value;
  out.reduce = is_gather_   ? 0
               : exchanges_ ? spec::local_copy_us(machine_, shard_bytes / q * peers_)
                            : spec::reduce_us(machine_, shard_bytes / q * (op_.ranks + 1));
  if (form == ClosedForm::serial) {
    out.steps = 1;
    out.each = gemm_us_;
  } else if (form == ClosedForm::per_shard) {
    out.steps = q * peers_;
    out.copies = 1;
    out.each = part_us(chunk, 1);
    out.own = part_us(shard_, 1);
    if (sums_rows_) add_wide_sums(&out);
  } else if (sums_rows_ && is_slab) {
    out.steps = q;
    out.each = product_us(base::ceil_div(op_.k, q), 1, op_.n, op_.m);
  } else if (sums_rows_) {
    return std::nullopt;
  } else if (form == ClosedForm::other_shards) {
    out.steps = q;
    out.each = product_us(chunk, peers_, op_.n, op_.k);
    out.own = product_us(shard_, 1, op_.n, op_.k);
  } else if (form == ClosedForm::all_shards) {
    out.steps = q;
    out.each = product_us(chunk, op_.ranks, op_.n, op_.k);
  } else if (is_slab) {
    out.steps = q;
    out.each = is_gather_ ? product_us(op_.m, 1, op_.n, base::ceil_div(op_.k, q))
                          : product_us(op_.m, 1, base::ceil_div(op_.n, q), op_.k);
    if (is_gather_) add_wide_sums(&out);
  } else if (is_grouped(form)) {
    const bool is_one = form == ClosedForm::group;
    out.steps = is_one ? 1 : peers_;
    out.copies = is_one ? peers_ : 1;
    out.each = product_us(chunk, is_one ? op_.ranks : 1, op_.n, op_.k);
    out.own = is_one ? 0 : out.each;
  } else {
    return std::nullopt;
  }
  // A product of several shards has a task for each; converting makes the activation too.
  const int products = out.steps * (form == ClosedForm::other_shards ? peers_
                                    : form == ClosedForm::all_shards ? op_.ranks
                                                                     : 1);
  if (activation_us_ > 0 && out.convert == 0) out.activations = products + (out.own > 0 ? 1 : 0);
  return out;
}

std::optional<double> Recurrence::library_us(const With& with) const {
  const auto& l = machine_.latency;
  const double bytes = static_cast<double>(rows_) * row_bytes_;
  const char* name = exchanges_          ? "all_to_all"
                     : is_gather_        ? "all_gather"
                     : is_reduced_twice_ ? "all_reduce"
                                         : "reduce_scatter";
  const bool is_scatter = !is_gather_ && !exchanges_ && !is_reduced_twice_;
  const int apart = is_scatter ? spec::unequal_shards(spec::row_offsets(op_)) : 0;
  const std::optional<double> sum = spec::collective_us(machine_, name, bytes, op_.ranks, apart);
  if (!sum) return std::nullopt;
  const int kernels = 1 + (activation_us_ > 0 ? 1 : 0);
  const double device =
      gemm_us_ + *sum + activation_us_ + (with.latencies ? l.call_us.value + (1 + kernels) * l.launch_us.value : 0);
  return with.host ? std::max(device, host_us(kernels, 0, std::max(apart, 1))) : device;
}

/// Own shard first; then step by step: a product starts when the one before it is done and its rows are there. The
/// lane of the copies waits for the call to begin.
double Recurrence::gather_us(const Steps& s, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const double launch = on * l.launch_us.value, seen = on * (l.flag_us.value + l.wait_us.value);
  const double copies = s.copies * (s.copy * with.copy + on * machine_.copy.post_us.value);
  double computed = on * l.call_us.value, arrived = computed + on * triggered_us();
  if (s.own > 0) computed += launch + s.own * with.gemm;
  for (int i = 0; i < s.steps; ++i) {
    arrived += copies;
    computed = std::max(computed, arrived + seen) + launch + (s.each + (i > 0 || s.own > 0 ? s.wide : 0)) * with.gemm;
  }
  return computed + (s.convert > 0 ? launch + s.convert : s.activations * launch + activation_us_);
}

/// Step by step: a transfer starts when its rows are computed and the one before it has left; a chunk is summed when it
/// has come, behind the last product. gemm_ar then sends the sums.
double Recurrence::scatter_us(const Steps& s, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const double launch = on * l.launch_us.value, seen = on * (l.flag_us.value + l.wait_us.value);
  const double triggered = on * triggered_us();
  const double copies = s.copies * (s.copy * with.copy + on * machine_.copy.post_us.value);
  const int per_chunk = s.steps / s.chunks;
  double computed = on * l.call_us.value, link = computed;
  std::vector<double> arrived(static_cast<size_t>(s.chunks));
  for (int i = 0; i < s.steps; ++i) {
    computed += launch + s.each * with.gemm;
    link = std::max(link, computed + triggered) + copies;
    arrived[static_cast<size_t>(i / per_chunk)] = link;
  }
  if (s.own > 0) computed += launch + s.own * with.gemm;
  if (exchanges_) {  // what comes is copied to its place beside the products
    double taken = 0;
    for (const double at : arrived) taken = std::max(taken, at + seen) + s.reduce;
    return std::max(computed, taken);
  }
  for (const double at : arrived) {
    computed = std::max(computed, at + seen) + launch + s.reduce;
    if (!is_reduced_twice_) continue;
    link = std::max(link, computed + triggered) + peers_ * (s.copy * with.copy + on * machine_.copy.post_us.value);
  }
  if (!is_reduced_twice_) return computed;
  const double taken = spec::local_copy_us(machine_, static_cast<double>(shard_) * peers_ * row_bytes_ / s.chunks);
  return std::max(computed, link + seen) + launch + taken;
}

/// gemm_ar in groups: group s is summed behind what group s + 1 sends, and its broadcast shares the link with the
/// partials of later groups.
double Recurrence::grouped_us(const Steps& s, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const double launch = on * l.launch_us.value, seen = on * (l.flag_us.value + l.wait_us.value);
  const double triggered = on * triggered_us();
  const double copy = s.copy * with.copy + on * machine_.copy.post_us.value;
  double computed = on * l.call_us.value, link = computed, arrived = 0;  // of the group before
  const auto sum_and_send = [&] {
    computed = std::max(computed, arrived + seen) + launch + s.reduce;
    link = std::max(link, computed + triggered) + peers_ * copy;
  };
  for (int group = 0; group < s.chunks; ++group) {
    double sent = link;
    for (int i = 0; i < s.steps; ++i) {
      computed += launch + s.each * with.gemm;
      sent = std::max(sent, computed + triggered) + s.copies * copy;
    }
    link = sent;
    if (group > 0) sum_and_send();
    arrived = sent;
    if (s.own > 0) computed += launch + s.own * with.gemm;
  }
  sum_and_send();
  const double taken = spec::local_copy_us(machine_, static_cast<double>(shard_) * peers_ * row_bytes_ / s.chunks);
  return std::max(computed, link + seen) + triggered + taken;
}

/// The GEMM of a one-kernel family, on its own tiles.
spec::GemmCost Recurrence::fused_product(ClosedForm form) const {
  spec::FusedWork work = {shard_, op_.ranks, op_.n, op_.k, spec::slot_tile_cols(op_)};
  if (form == ClosedForm::slab_kernel) {
    std::vector<int64_t> off;
    for (int r = 0; r <= op_.ranks; ++r) off.push_back(r * shard_);
    work.cols = spec::gather_tile_cols(off, op_.n, machine_.sms);
  }
  return spec::fused_cost(machine_, work);
}

/// Waves of `k_slab` before a tile of the others' rows. They share the last wave at least.
double Recurrence::own_waves(const spec::GemmCost& product) const {
  return std::max(std::min(product.waves / op_.ranks, product.waves - 1), 0.0);
}

/// What its SMs store to all peers: partials or own rows, and sums.
double Recurrence::store_us(ClosedForm form) const {
  const spec::Curve& GBps =
      form == ClosedForm::slab_kernel ? machine_.transport.store_GBps : machine_.transport.tma_GBps;
  const double passes = is_reduced_twice_ ? 2 : 1;
  return passes * peers_ * static_cast<double>(shard_) * row_bytes_ / (GBps.at(machine_.sms) * kBytesPerUs);
}

/// One kernel: waves of my rows, slowed by what pushes them, then a wave of the others' that goes through their slabs
/// as these come. Each slab comes from all peers before the next, so the waves behind it find all of them there.
double Recurrence::k_slab_us(int slabs, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const spec::GemmCost whole = fused_product(ClosedForm::slab_kernel);
  const double wave =
      (whole.us - whole.start_us) / std::max(whole.waves, 1.0) * spec::fused_slowdown(machine_, shard_, op_.k);
  const double own = own_waves(whole);
  const double mine = own * wave + (with.gemm - 1) * whole.us;
  const double slab = store_us(ClosedForm::slab_kernel) * with.copy / slabs + on * l.flag_us.value;
  double computed = mine + wave;
  for (int i = 0; i < slabs; ++i) computed = std::max(computed, (i + 1) * slab + (slabs - i) * wave / slabs);
  return whole.start_us + computed + (whole.waves - own - 1) * wave + on * (l.call_us.value + l.launch_us.value);
}

/// Its tiles, slowed by their stores or by their operands, whichever is more: each hides the other.
double Recurrence::compute_us(const spec::GemmCost& whole, const With& with) const {
  return (whole.us - whole.start_us) * std::max(with.gemm, spec::fused_slowdown(machine_, shard_, op_.k));
}

/// One kernel: tiles of the others' rows leave as they are computed, those of a wave while it is multiplied no more;
/// tiles of my rows lie among them and add what has come, so that only the sums of a wave hide behind nothing.
double Recurrence::tma_slot_us(int groups, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const spec::GemmCost whole = fused_product(ClosedForm::tile_kernel);
  const double compute = compute_us(whole, with), waves = std::max(whole.waves, 1.0);
  const double sent = store_us(ClosedForm::tile_kernel) * with.copy;
  const double out = compute / waves + sent + on * l.flag_us.value + sent / groups;
  const double sum = spec::reduce_us(machine_, static_cast<double>(shard_) * row_bytes_ * op_.ranks);
  const double end = std::max(compute + sent / waves, out) + sum / waves;
  return whole.start_us + end + on * (l.call_us.value + l.launch_us.value);
}

/// One kernel that counts its tiles: a copy starts a trigger behind the wave that fills its count, tiles of my rows
/// come last, and sums behind the kernel.
double Recurrence::tracked_us(int degree, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const spec::GemmCost whole = fused_product(ClosedForm::tracked_kernel);
  const double waves = std::max(whole.waves, 1.0), wave = compute_us(whole, with) / waves;
  const int chunks = chunks_of(degree), copies = chunks * peers_;
  const double bytes = static_cast<double>(shard_) * row_bytes_ / chunks;
  const double copy = spec::copy_us(machine_, bytes) * with.copy + on * machine_.copy.post_us.value;
  const double begin = on * (l.call_us.value + l.launch_us.value) + whole.start_us;
  double computed = begin + waves * wave, link = begin;
  std::vector<double> arrived(static_cast<size_t>(chunks));
  for (int i = 0; i < copies; ++i) {
    const double filled = std::ceil(waves * (i + 1) * peers_ / (copies * op_.ranks)) * wave;
    link = std::max(link, begin + filled + on * machine_.copy.trigger_us.value) + copy;
    arrived[static_cast<size_t>(i / peers_)] = link;
  }
  const double sum = spec::reduce_us(machine_, bytes * (op_.ranks + 1)), launch = on * l.launch_us.value;
  for (const double at : arrived)
    computed = std::max(computed, at + on * (l.flag_us.value + l.wait_us.value)) + launch + sum;
  return computed;
}

/// Chunks are of whole rows of tiles.
int Recurrence::chunks_of(int degree) const {
  const int64_t rows = base::ceil_div(shard_, kSlotTileRows);
  return static_cast<int>(base::ceil_div(rows, base::ceil_div<int64_t>(rows, std::min(degree, kMaxPieces))));
}

/// gemm_ar in one kernel: sums and copies hide between products but for those of the last band, whose sums go to all
/// peers behind the last product. Partials, sums and the end of the call are told to peers, which look for them.
double Recurrence::bands_us(int bands, const With& with) const {
  const auto& l = machine_.latency;
  const double on = with.latencies ? 1 : 0;
  const spec::GemmCost whole = fused_product(ClosedForm::tile_kernel);
  const double compute = compute_us(whole, with), waves = std::max(whole.waves, 1.0);
  const double sent = store_us(ClosedForm::tile_kernel) * with.copy;
  const double last = sent / 2 / static_cast<double>(std::min<int64_t>(bands, base::ceil_div(shard_, kSlotTileRows)));
  const double end = std::max(compute + last, compute / waves + sent);
  return whole.start_us + end + on * (l.call_us.value + l.launch_us.value + 3 * (l.flag_us.value + l.wait_us.value));
}

/// One kernel: its weights stream, and all else hides but what is sent before them (rows) or behind the last wave
/// (sums, of gemm_ar all rows to all peers).
std::optional<double> Recurrence::one_shot_us() const {
  const spec::Curve& GBps = machine_.transport.store_GBps;
  const auto& kernel = machine_.few_rows;
  const double streams = (is_gather_ ? kernel.gather_sm_GBps : kernel.sum_sm_GBps).value;
  if (GBps.empty() || streams <= 0) return std::nullopt;
  const spec::OneShotCost cost =
      spec::one_shot_cost(machine_, is_gather_, {op_.m, op_.n, op_.k, 1, static_cast<int64_t>(element_)});
  const double rows = static_cast<double>(is_reduced_twice_ ? op_.m : shard_);
  const double sent = peers_ * rows * row_bytes_ / (GBps.at(machine_.sms) * kBytesPerUs);
  return cost.start_us + cost.stream_us + (is_gather_ ? sent : sent / std::max(cost.waves, 1.0));
}

Recurrence::With Recurrence::slowed(const Candidate& candidate) const {
  const ClosedForm form = form_of(candidate);
  const bool is_one = is_fused(form), is_counted = form == ClosedForm::tracked_kernel;
  const Load by = !is_one ? Load::ce_in : is_gather_ ? Load::sm_copy : Load::epi_store;
  const double gemm = spec::contention(machine_, Load::gemm_tensor, by) *
                      (is_one ? 1 : spec::contention(machine_, Load::gemm_tensor, Load::ce_out));
  const double copy = spec::contention(machine_, is_one ? by : Load::ce_out, Load::gemm_tensor);
  const spec::GemmCost product = is_one || is_counted ? fused_product(form) : spec::GemmCost{gemm_us_, 1, 0};
  const double product_us = product.us, sent_us = is_one ? store_us(form) : transfer_us_;
  // Whoever waits for the last slab multiplies nothing.
  const double share = form == ClosedForm::slab_kernel ? (own_waves(product) + 1) / std::max(product.waves, 1.0) : 1;
  const double together = std::min(share * product_us, sent_us);
  With out;
  if (product_us > 0) out.gemm = 1 + (gemm - 1) * together / product_us;
  if (sent_us > 0) out.copy = 1 + (copy - 1) * together / sent_us;
  // With one peer there is nobody else to get from.
  const bool keeps_step = is_one || peers_ < 2 || (is_gather_ && candidate.degree == 1);
  if (!keeps_step && machine_.copy.out_of_step.value > 0) out.copy *= machine_.copy.out_of_step.value;
  return out;
}

double Recurrence::us_with(const Candidate& candidate, const Steps& steps, const With& with) const {
  const ClosedForm form = form_of(candidate);
  if (is_fused(form)) {
    const double device = form == ClosedForm::slab_kernel ? k_slab_us(candidate.degree, with)
                          : is_reduced_twice_             ? bands_us(candidate.degree, with)
                                                          : tma_slot_us(candidate.degree, with);
    return with.host ? std::max(device, host_us(1, 0, 0)) : device;
  }
  if (form == ClosedForm::tracked_kernel) {
    const double device = tracked_us(candidate.degree, with);
    const int chunks = chunks_of(candidate.degree), copies = chunks * peers_;
    return with.host ? std::max(device, host_us(1 + 2 * chunks + copies, 2 * copies, 0)) : device;
  }
  const bool has_groups = is_grouped(form);
  const double device = is_gather_   ? gather_us(steps, with)
                        : has_groups ? grouped_us(steps, with)
                                     : scatter_us(steps, with);
  if (!with.host) return device;
  // A product of a step also waits for words or adds to them, a sum waits, a copy is followed by its signal.
  const int groups = has_groups ? steps.chunks : 1;
  const int products = groups * (2 * steps.steps + (steps.own > 0 ? 1 : 0)) + steps.activations;
  const int sums = is_gather_ ? 0 : 2 * steps.chunks;
  const int copies = groups * steps.steps * steps.copies + (is_reduced_twice_ ? steps.chunks * (peers_ + 1) : 0);
  return std::max(device, host_us(products + sums, 2 * copies, 0));
}

std::optional<double> Recurrence::us(const Candidate& candidate) const {
  const std::optional<double> sums = sums_us(candidate);
  return sums ? std::optional(*sums + norm_us_) : std::nullopt;
}

std::optional<double> Recurrence::sums_us(const Candidate& candidate) const {
  const ClosedForm form = form_of(candidate);
  if (form == ClosedForm::none) return std::nullopt;
  if (form == ClosedForm::library) return library_us({});
  if (form == ClosedForm::small_m_kernel) return one_shot_us();
  if (is_fused(form)) {
    if (candidate.degree < 1) return std::nullopt;
    if ((is_gather_ ? machine_.transport.store_GBps : machine_.transport.tma_GBps).empty()) return std::nullopt;
    return us_with(candidate, {}, slowed(candidate));
  }
  if (form == ClosedForm::tracked_kernel)
    return candidate.degree < 1 ? std::nullopt : std::optional(us_with(candidate, {}, slowed(candidate)));
  const std::optional<Steps> steps = steps_of(candidate);
  if (!steps) return std::nullopt;
  const bool is_busy = machine_.is_gpu && transfer_us_ > machine_.copy.most_grouped.value * gemm_us_;
  if (is_busy && is_grouped(form)) return std::nullopt;
  return us_with(candidate, *steps, form == ClosedForm::serial ? With{} : slowed(candidate));
}

spec::Waterfall Recurrence::waterfall(const Candidate& candidate) const {
  const std::optional<double> whole = sums_us(candidate);
  if (!whole) return {};
  spec::Waterfall out;
  double before = 0;
  const auto with_norm = [&] {
    if (norm_us_ > 0) out.emplace_back("norm", norm_us_);
    return out;
  };
  const auto add = [&](const char* name, double until) {
    out.emplace_back(name, until - before);
    before = until;
  };
  add("ideal", std::max(gemm_us_, transfer_us_));
  const ClosedForm form = form_of(candidate);
  if (form == ClosedForm::small_m_kernel) {
    add("launches", *whole);
    return with_norm();
  }
  if (form == ClosedForm::library) {
    add("no overlap", *library_us({.latencies = false, .host = false}));
    add("launches", *library_us({.host = false}));
    add("host", *whole);
    return with_norm();
  }
  const With with = form == ClosedForm::serial ? With{} : slowed(candidate);
  add("contention", std::max(gemm_us_ * with.gemm, transfer_us_ * with.copy));
  Steps steps;
  if (!is_fused(form) && form != ClosedForm::tracked_kernel) {
    steps = *steps_of(candidate);
    const int groups = is_grouped(form) ? steps.chunks : 1;
    const double gemm =
        groups * (steps.steps * steps.each + steps.own) + (steps.steps - (steps.own > 0 ? 0 : 1)) * steps.wide;
    const double copies = groups * steps.steps * steps.copies * steps.copy * (is_reduced_twice_ ? 2 : 1);
    add("decomposition", std::max(gemm * with.gemm, copies * with.copy));
  }
  With bare = with;
  bare.latencies = bare.host = false;
  add("head and tail", us_with(candidate, steps, bare));
  bare.latencies = true;
  add("launches, signals, triggers", us_with(candidate, steps, bare));
  add("host", *whole);
  return with_norm();
}

}  // namespace overlace::plan
