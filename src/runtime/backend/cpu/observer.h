// Whoever stands between a CPU rank and what it does: the explorer, and tests that let a rank fail or leave a step out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "overlace/errc_pod.h"
#include "overlace/handle_pod.h"
#include "overlace/runtime.h"

namespace overlace::runtime {

struct CpuAgent;
struct WaitSite;

/// What a rank is about to do; `start`: whatever comes first. Ranks are world ranks.
struct Step {
  enum class Kind { put, put_signal, add, post, word, fence, wait, start } kind = Kind::put;
  int rank = 0, peer = 0;
  uint32_t id = 0;  // put_signal, add, post, wait: the signal
};
const char* step_name(Step::Kind kind);

class Observer {
 public:
  virtual ~Observer() = default;
  /// Any thread of the rank. False: the step is left out.
  virtual bool before(const Step& step) = 0;
  /// A condition that does not hold yet. Returns once it does, or why it never will; nothing: wait as usual.
  virtual std::optional<Errc> wait(const Step& step, const WaitSite& site, const std::function<bool()>& ready) {
    (void)site, (void)ready;
    before(step);
    return std::nullopt;
  }
  /// Which of the n > 1 things that it may do the rank does next; nothing: it draws for itself.
  virtual std::optional<size_t> pick(int rank, size_t n) {
    (void)rank, (void)n;
    return std::nullopt;
  }
};

/// Null: nobody. While no operation is under way.
void observe(Runtime& runtime, Observer* observer);
/// The agent of a runtime of CPU ranks; null else.
CpuAgent* cpu_agent(Runtime& runtime);

}  // namespace overlace::runtime
