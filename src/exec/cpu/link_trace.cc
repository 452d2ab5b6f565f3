#include "src/exec/cpu/link_trace.h"

#include <iterator>
#include <map>

#include "src/base/format.h"
#include "src/exec/timeline.h"
#include "src/runtime/state.h"

namespace overlace::exec {

std::shared_ptr<LinkTrace> LinkTrace::of(Runtime& runtime, int world_rank) {
  if (!runtime.options().link.enabled) return nullptr;
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<LinkTrace>> known;  // by runtime; dead ones are replaced
  const std::lock_guard lock(mutex);
  std::weak_ptr<LinkTrace>& entry = known[&runtime.state()];
  std::shared_ptr<LinkTrace> trace = entry.lock();
  if (trace != nullptr) return trace;
  std::erase_if(known, [&](const auto& item) { return item.first != &runtime.state() && item.second.expired(); });
  trace = std::make_shared<LinkTrace>();
  known[&runtime.state()] = trace;
  // The runtime's thread may outlive every channel's cache, so it holds no reference.
  runtime::set_transfer_sink(
      runtime, [weak = std::weak_ptr(trace), world_rank](int peer, int64_t begin_ns, int64_t end_ns, size_t bytes) {
        const std::shared_ptr<LinkTrace> target = weak.lock();
        if (target == nullptr || bytes == 0) return;
        target->record({.rank = world_rank,
                        .lane = base::format("link {}->{}", world_rank, peer),
                        .name = "transfer",
                        .category = "copy",
                        .begin_ns = begin_ns,
                        .end_ns = end_ns,
                        .bytes = static_cast<int64_t>(bytes)});
      });
  return trace;
}

void LinkTrace::start() {
  const std::lock_guard lock(mutex_);
  is_on_ = true;
}

void LinkTrace::stop(std::string_view label, base::Trace* trace) {
  const std::lock_guard lock(mutex_);
  is_on_ = false;
  for (base::Span& span : spans_) span.name = labelled(label, span.name);
  trace->spans.insert(trace->spans.end(), std::make_move_iterator(spans_.begin()),
                      std::make_move_iterator(spans_.end()));
  spans_.clear();
}

void LinkTrace::record(base::Span span) {
  const std::lock_guard lock(mutex_);
  if (is_on_) spans_.push_back(std::move(span));
}

}  // namespace overlace::exec
