// A replica whose state lies on a GPU: what the host learns of boundaries, and the state as the host sees it.
#include <cmath>
#include <utility>

#include "src/train/co2/replica.h"

namespace overlace::train {
namespace {

/// Between two marks of a stream that did not wait.
constexpr int64_t kNoWaitNs = 10'000;

double ms_of(const DeviceSpan& span) { return static_cast<double>(span.end_ns - span.begin_ns) / 1e6; }

}  // namespace

void Replica::use(void* stream) {
  if (device_) device_->use(stream);
}

void Replica::copy_anchor(std::span<float> anchor) const {
  OVERLACE_ASSERT(static_cast<int64_t>(anchor.size()) == elements_);
  if (device_)
    device_->read_anchor(anchor);
  else
    std::copy(anchor_.begin(), anchor_.end(), anchor.begin());
}

/// Waits for the boundaries that were queued. What their streams have waited for has ended then; a failure of that
/// comes before what it made of the header.
void Replica::take_reports() {
  while (!queued_.empty()) {
    const DeviceReport report = device_->take_report();
    Queued queued = std::move(queued_.front());
    queued_.pop_front();
    current_ = queued.stats;
    has_failed_ = true;  // until it has not
    for (const Ticket ticket : queued.waited) {
      outer_.wait(ticket, timeout_ms());
      note_times(ticket);
    }
    has_failed_ = false;
    for (const DeviceSpan& span : report.spans) {
      if (span.kind == DeviceSpan::Kind::steps && !queued.is_flushing) rounds_.end_steps(span.end_ns);
      if (span.kind == DeviceSpan::Kind::wait && span.end_ns - span.begin_ns > kNoWaitNs) {
        current_.exposed_ms += ms_of(span);
        rounds_.wait(span.begin_ns, span.end_ns);
      }
      if (span.kind != DeviceSpan::Kind::pass) continue;
      current_.pass_ms += ms_of(span);
      if (!queued.is_flush) rounds_.pass(span.begin_ns, span.end_ns);
    }
    const int64_t end_ns = report.spans.back().end_ns;
    if (!queued.is_flushing) rounds_.end_boundary(end_ns);
    const FactsPod& facts = report.facts;
    control_ = facts.control;
    failure_ = status_of(control_, facts.sum, facts.own, queued.knobs);
    if (failure_.code() == Errc::desync) {
      settle();  // all groups see the same: none leaves while another one still waits
      failure_.or_throw();
    }
    if (control_.verdict == Verdict::none_yet) {
      current_ = {};
      continue;
    }
    (void)take_header(queued.knobs, &facts.sum);
    took_in(facts, queued.knobs, end_ns, queued.is_flush);
  }
}

/// Makes room for the state on the host, with a device for as long as a checkpoint is made or loaded.
void Replica::hold_image() {
  const auto count = static_cast<size_t>(elements_);
  anchor_.resize(count);
  if (has_momentum()) momentum_.resize(count);
  if (has_kept()) kept_.resize(count);
  if (has_residual()) residual_.resize(count);
  wire_.resize(count * dtype_bytes(kept_dtype(options_.wire_dtype)));
  if (options_.device < 0) return;
  size_t bytes = 0;
  for (const Parameter& p : parameters_) bytes += static_cast<size_t>(p.count) * dtype_bytes(p.dtype);
  image_.resize(bytes);
}

void Replica::drop_image() {
  if (device_ == nullptr) return;
  for (std::vector<float>* values : {&anchor_, &momentum_, &kept_, &residual_}) *values = {};
  for (std::vector<char>* bytes : {&wire_, &image_}) *bytes = {};
}

StateImage Replica::image() {
  return {.control = control_,
          .own = own_header_,
          .sum = *header_,
          .bounds = bounds_,
          .sums = sums_,
          .anchor = anchor_,
          .momentum = momentum_,
          .kept = kept_,
          .residual = residual_,
          .wire = wire_,
          .parameters = image_};
}

#ifndef OVERLACE_HAS_CUDA
std::unique_ptr<DeviceState> open_device_state(const DeviceStateOptions& options) {
  throw_error(Errc::not_supported, base::format("parameters are memory of GPU {}, and this build has no CUDA "
                                                "(OVERLACE_CUDA=OFF, or nvcc was not found); supported: of the host",
                                                options.device));
}
#endif

}  // namespace overlace::train
