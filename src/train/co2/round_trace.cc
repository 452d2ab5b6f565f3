#include "src/train/co2/round_trace.h"

namespace overlace::train {

void RoundTrace::restart(int64_t now_ns) {
  steps_begin_ns_ = steps_end_ns_ = now_ns;
  pass_ns_ = last_pass_end_ns_ = 0;
}

void RoundTrace::end_steps(int64_t now_ns) {
  steps_end_ns_ = now_ns;
  pass_ns_ = 0;
}

void RoundTrace::pass(int64_t begin_ns, int64_t end_ns) {
  pass_ns_ += end_ns - begin_ns;
  last_pass_end_ns_ = end_ns;
}

void RoundTrace::end_boundary(int64_t now_ns) {
  add("compute", "steps", "other", steps_begin_ns_, steps_end_ns_, 0);
  const int64_t end_ns = pass_ns_ > 0 ? last_pass_end_ns_ : now_ns;
  add("compute", "update", "other", end_ns - pass_ns_, end_ns, 0);
  restart(now_ns);
}

base::Trace RoundTrace::trace(int rank, const std::string& title) const {
  base::Trace trace;
  trace.title = title;
  trace.spans.assign(spans_.begin(), spans_.end());
  for (base::Span& span : trace.spans) span.rank = rank;
  return trace;
}

void RoundTrace::add(const char* lane, const char* name, const char* category, int64_t begin_ns, int64_t end_ns,
                     int64_t bytes) {
  spans_.push_back(
      {.lane = lane, .name = name, .category = category, .begin_ns = begin_ns, .end_ns = end_ns, .bytes = bytes});
  if (spans_.size() > kKeptSpans) spans_.pop_front();
}

}  // namespace overlace::train
