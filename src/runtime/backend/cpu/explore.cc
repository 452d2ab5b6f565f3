#include "src/runtime/backend/cpu/explore.h"

#include <algorithm>
#include <chrono>

#include "overlace/error.h"
#include "src/base/format.h"
#include "src/runtime/backend/cpu/agent.h"
#include "src/runtime/backend/cpu/wire.h"
#include "src/runtime/names.h"
#include "src/runtime/wait.h"

namespace overlace::runtime {
namespace {

constexpr std::chrono::seconds kPatience{60};

}  // namespace

Choices Choices::of_seed(uint64_t seed) {
  Choices choices;
  choices.is_random_ = true;
  choices.state_ = seed;
  return choices;
}

size_t Choices::draw(size_t n) {
  if (is_random_) {
    // splitmix64: each state gives one well-mixed word.
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t word = state_;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return static_cast<size_t>((word ^ (word >> 31)) % n);
  }
  if (position_ == made_.size()) made_.emplace_back(0, n);
  // What a path offers depends on the choices before alone, or it could not be walked again.
  OVERLACE_ASSERT(made_[position_].second == n);
  return made_[position_++].first;
}

bool Choices::next() {
  position_ = 0;
  while (!made_.empty() && made_.back().first + 1 == made_.back().second) made_.pop_back();
  if (made_.empty()) return false;
  ++made_.back().first;
  return true;
}

Explorer::Explorer(int ranks, Choices choices, size_t max_steps)
    : ranks_(static_cast<size_t>(ranks)), choices_(std::move(choices)), max_steps_(max_steps) {}

void Explorer::attach(Runtime& runtime) {
  CpuAgent* agent = cpu_agent(runtime);
  OVERLACE_ASSERT(agent != nullptr && agent->wire != nullptr);
  agent->wire->deliver_by_hand();
  {
    const std::lock_guard lock(mutex_);
    ranks_[static_cast<size_t>(agent->rank)].agent = agent;
  }
  observe(runtime, this);
}

void Explorer::detach(Runtime& runtime) {
  observe(runtime, nullptr);
  CpuAgent* agent = cpu_agent(runtime);
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(agent->rank)].agent = nullptr;
}

void Explorer::enter(int rank) {
  std::unique_lock lock(mutex_);
  Rank& mine = ranks_[static_cast<size_t>(rank)];
  mine.state = State::ready;
  mine.step = {.kind = Step::Kind::start, .rank = rank, .peer = rank, .id = 0};
  const bool is_last =
      std::none_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state == State::outside; });
  if (is_last) {
    trace_.clear();
    failure_.clear();
    choose();
  }
  await_turn(rank, lock);
}

void Explorer::leave(int rank) {
  const std::lock_guard lock(mutex_);
  ranks_[static_cast<size_t>(rank)].state = State::done;
  choose();
}

bool Explorer::next() {
  const std::lock_guard lock(mutex_);
  for (const Rank& rank : ranks_)
    if (rank.agent != nullptr) rank.agent->wire->forget_all();
  return choices_.next();
}

bool Explorer::before(const Step& step) {
  if (step.kind == Step::Kind::fence) return true;  // nobody can see when it happens
  std::unique_lock lock(mutex_);
  Rank& mine = ranks_[static_cast<size_t>(step.rank)];
  mine.step = step;
  if (current_ == step.rank) pass_on(step.rank, lock);
  return true;
}

std::optional<Errc> Explorer::wait(const Step& step, const WaitSite& site, const std::function<bool()>& ready) {
  std::unique_lock lock(mutex_);
  if (current_ != step.rank) return std::nullopt;
  Rank& mine = ranks_[static_cast<size_t>(step.rank)];
  mine.step = step;
  mine.site = &site;
  mine.holds = &ready;
  mine.state = State::waiting;
  pass_on(step.rank, lock);
  return failure_.empty() ? Errc::ok : Errc::aborted;
}

std::optional<size_t> Explorer::pick(int rank, size_t n) {
  const std::lock_guard lock(mutex_);
  if (current_ != rank) return std::nullopt;
  return choices_.draw(n);
}

/// Until it is this rank's turn again.
void Explorer::pass_on(int rank, std::unique_lock<std::mutex>& lock) {
  choose();
  await_turn(rank, lock);
}

void Explorer::await_turn(int rank, std::unique_lock<std::mutex>& lock) {
  Rank& mine = ranks_[static_cast<size_t>(rank)];
  if (mine.turn.wait_for(lock, kPatience, [&] { return current_ == rank; })) return;
  mine.state = State::done;  // what it waits for is gone with its stack
  throw Internal(Errc::internal, base::format("explorer: rank {} waited {} s for its turn, which rank {} has", rank,
                                              kPatience.count(), current_));
}

void Explorer::run_on(int rank) {
  Rank& next = ranks_[static_cast<size_t>(rank)];
  next.state = State::ready;
  current_ = rank;
  next.turn.notify_one();
}

/// Deliveries happen here, until a rank is chosen.
void Explorer::choose() {
  while (true) {
    std::vector<int> runnable;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const Rank& rank = ranks_[r];
      const bool may_run = rank.state == State::ready || (rank.state == State::waiting && (*rank.holds)());
      if (may_run) runnable.push_back(static_cast<int>(r));
    }
    size_t total = runnable.size();
    for (const Rank& rank : ranks_) total += rank.agent->wire->num_deliverable();
    const bool is_over =
        std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state == State::done; });
    if (is_over && (total == 0 || !failure_.empty())) return finish();
    if (total == 0 && failure_.empty()) failure_ = cycle();
    if (trace_.size() >= max_steps_ && failure_.empty())
      failure_ = base::format("the path has more than {} steps", max_steps_);
    if (!failure_.empty()) {
      // Waits return now; one rank after the other runs to its end.
      const auto left =
          std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state != State::done; });
      if (left == ranks_.end()) return finish();
      return run_on(static_cast<int>(left - ranks_.begin()));
    }
    size_t choice = total == 1 ? 0 : choices_.draw(total);
    if (choice < runnable.size()) {
      trace_.push_back({false, ranks_[static_cast<size_t>(runnable[choice])].step});
      return run_on(runnable[choice]);
    }
    choice -= runnable.size();
    for (Rank& rank : ranks_) {
      const size_t count = rank.agent->wire->num_deliverable();
      if (choice < count) {
        trace_.push_back({true, rank.agent->wire->deliver_one(choice)});
        break;
      }
      choice -= count;
    }
  }
}

/// All have left.
void Explorer::finish() {
  current_ = -1;
  for (Rank& rank : ranks_) rank.state = State::outside;
}

std::string Explorer::wait_text(int rank) const {
  const Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.site->kind == WaitKind::stream) return base::format("rank {} waits for its own puts", rank);
  const uint64_t seen = r.site->word == nullptr
                            ? 0
                            : std::atomic_ref(*const_cast<uint64_t*>(r.site->word)).load(std::memory_order_acquire);
  const std::string what = r.site->kind == WaitKind::word
                               ? "a word"
                               : base::format("signal {} ({})", r.step.id, r.agent->names->id(r.step.id));
  return base::format("rank {} waits for rank {}, {}: expected >= {}, seen {}", rank, r.step.peer, what,
                      r.site->expected, seen);
}

/// From the first waiting rank along whom each waits for.
std::string Explorer::cycle() const {
  const auto first =
      std::find_if(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.state == State::waiting; });
  std::vector<int> chain;
  int rank = static_cast<int>(first - ranks_.begin());
  const auto is_waiting = [&](int r) { return ranks_[static_cast<size_t>(r)].state == State::waiting; };
  const auto was_there = [&](int r) { return std::find(chain.begin(), chain.end(), r) != chain.end(); };
  for (; is_waiting(rank) && !was_there(rank); rank = ranks_[static_cast<size_t>(rank)].step.peer)
    chain.push_back(rank);
  // What leads into the cycle is no part of it.
  if (is_waiting(rank)) chain.erase(chain.begin(), std::find(chain.begin(), chain.end(), rank));
  std::string text = "deadlock: ";
  for (const int r : chain) text += wait_text(r) + "; ";
  text += is_waiting(rank) ? base::format("which is the first again: rank {}", rank)
                           : base::format("rank {} has ended", rank);
  return text;
}

std::string Explorer::path() const {
  std::string text;
  for (const auto& [is_delivery, step] : trace_)
    text += is_delivery ? base::format("wire: {} of rank {} arrives at rank {}, signal {}\n", step_name(step.kind),
                                       step.rank, step.peer, step.id)
                        : base::format("rank {}: {} to rank {}, signal {}\n", step.rank, step_name(step.kind),
                                       step.peer, step.id);
  return text;
}

}  // namespace overlace::runtime
