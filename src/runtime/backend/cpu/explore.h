// Explorer: the ranks are threads of which one runs at a time. At each put, signal, word and unsatisfied wait any rank
// that can run, or any delivery that the wire may make, may be next; which it is, is drawn from a seed or tried in
// turn.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "overlace/runtime.h"
#include "src/runtime/backend/cpu/observer.h"

namespace overlace::runtime {

/// A sequence of decisions between 0 and n - 1: of a seed, or every sequence there is, one after the other.
class Choices {
 public:
  static Choices of_seed(uint64_t seed);
  static Choices all() { return Choices(); }
  size_t draw(size_t n);
  /// Begins the next sequence. False if there is none: all were tried, or it was the one of a seed.
  bool next();

 private:
  bool is_random_ = false;
  uint64_t state_ = 0;
  size_t position_ = 0;
  std::vector<std::pair<size_t, size_t>> made_;  // choice, of how many
};

/// One for all ranks of a runtime whose ranks are threads and whose adversary is on (it makes the wire).
class Explorer final : public Observer {
 public:
  /// `max_steps`: a path that is longer has failed.
  Explorer(int ranks, Choices choices, size_t max_steps);

  /// Each rank, before its first path. It must detach() before its runtime is closed.
  void attach(Runtime& runtime);
  void detach(Runtime& runtime);

  /// A path: each rank calls enter(), its part of the protocol, leave(). Between leave() and the next enter() no rank
  /// touches the heap before all have left. Inside, nothing may wait but on signals, words, flush, quiet and barrier
  /// of channels: whoever waits a minute for the others throws Internal.
  void enter(int rank);
  void leave(int rank);

  /// The last path's failure, after all have left: "" or the deadlock as the cycle of waits, or that it was too long.
  const std::string& failure() const { return failure_; }
  /// Its decisions in words, one per line: who ran on to what, what was delivered.
  std::string path() const;
  size_t steps() const { return trace_.size(); }
  /// The next path. False if there is none.
  bool next();

  bool before(const Step& step) override;
  std::optional<Errc> wait(const Step& step, const WaitSite& site, const std::function<bool()>& ready) override;
  std::optional<size_t> pick(int rank, size_t n) override;

 private:
  enum class State { outside, ready, waiting, done };
  struct Rank {
    State state = State::outside;
    CpuAgent* agent = nullptr;
    Step step;                                     // ready, waiting: what it is about to do
    const WaitSite* site = nullptr;                // waiting
    const std::function<bool()>* holds = nullptr;  // waiting
    std::condition_variable turn;
  };
  struct Event {
    bool is_delivery;
    Step step;
  };
  void pass_on(int rank, std::unique_lock<std::mutex>& lock);
  void await_turn(int rank, std::unique_lock<std::mutex>& lock);
  void choose();
  void run_on(int rank);
  void finish();
  std::string cycle() const;
  std::string wait_text(int rank) const;

  std::mutex mutex_;
  std::vector<Rank> ranks_;
  Choices choices_;
  const size_t max_steps_;
  int current_ = -1;
  std::vector<Event> trace_;
  std::string failure_;
};

}  // namespace overlace::runtime
