#include "src/runtime/engine/watch.h"

#include "src/runtime/clock.h"

namespace overlace::runtime {

void EngineList::add(EngineWatch* engine) {
  const std::lock_guard lock(mutex_);
  engines_.push_back(engine);
}

void EngineList::remove(EngineWatch* engine) {
  const std::lock_guard lock(mutex_);
  std::erase(engines_, engine);
}

base::Status EngineList::poll() {
  const std::lock_guard lock(mutex_);
  base::Status failed;
  for (EngineWatch* engine : engines_)
    if (base::Status status = engine->poll(); !status.ok() && failed.ok()) failed = std::move(status);
  if (failed.ok()) return {};
  if (failed_ns_ == 0) failed_ns_ = now_ns();
  if (failed.code() == Errc::engine && now_ns() - failed_ns_ < kPeerLostGraceNs) return {};
  return failed;
}

void EngineList::abort() {
  const std::lock_guard lock(mutex_);
  for (EngineWatch* engine : engines_) engine->abort();
}

std::string EngineList::pending() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return {};
  for (EngineWatch* engine : engines_)
    if (std::string at = engine->pending(); !at.empty()) return at;
  return {};
}

}  // namespace overlace::runtime
