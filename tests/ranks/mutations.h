// Schedules with one rule broken, and what the static checks say of them. docs/design/testing.md has the table.
#pragma once

#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "overlace/error.h"
#include "src/spec/check.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {

using spec::Schedule;
using spec::Task;

/// Copies to peers that say when they have arrived.
inline bool is_push(const Task& task) {
  return task.kind == spec::Kind::copy && !task.sets.empty() && !task.writes.empty() && task.writes[0].at.text() != "r";
}

inline std::string parenthesised(const spec::Expr& expr) { return "(" + expr.text() + ")"; }

// ---- mutations: change the schedule and say whether there was anything to change ----

using Mutate = bool (*)(Schedule&);

inline bool change_tasks(Schedule& schedule, const std::function<bool(Task&)>& change) {
  bool is_changed = false;
  for (Task& task : schedule.tasks) is_changed |= change(task);
  return is_changed;
}

/// The flag leaves before the copy: a copy of nothing in front of each push sets it.
inline bool early_signal(Schedule& schedule) {
  std::vector<Task> tasks;
  for (Task& task : schedule.tasks) {
    if (is_push(task)) {
      Task flag = task;
      flag.id += "_flag";
      for (std::vector<spec::Region>* regions : {&flag.reads, &flag.writes})
        for (spec::Region& region : *regions)
          for (spec::Range& range : region.dims) range.count = 0;
      flag.order = spec::Expr("2*" + parenthesised(task.order));
      task.order = spec::Expr("2*" + parenthesised(task.order) + "+1");
      task.sets.clear();
      tasks.push_back(std::move(flag));
    }
    tasks.push_back(task);
  }
  const bool is_changed = tasks.size() != schedule.tasks.size();
  schedule.tasks = std::move(tasks);
  return is_changed;
}

/// The copies of a lane go in reverse, their flags in the old order: each flag says that another copy has arrived.
inline bool swapped_flags(Schedule& schedule) {
  const auto degree = schedule.params.find("q");
  if (degree == schedule.params.end() || degree->second == spec::Param(int64_t{1})) return false;  // nothing to swap
  return change_tasks(schedule, [&](Task& task) {
    if (!is_push(task)) return false;
    bool is_changed = false;
    for (spec::Set& set : task.sets)
      for (const spec::SignalDecl& signal : schedule.signals) {
        if (signal.name != set.signal || signal.slots.text() == "1") continue;
        set.slot = spec::Expr(parenthesised(signal.slots) + "-1-" + parenthesised(set.slot));
        is_changed = true;
      }
    if (is_changed) task.order = spec::Expr("0-" + parenthesised(task.order));
    return is_changed;
  });
}

inline bool missing_signal(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    if (!is_push(task)) return false;
    task.sets.clear();
    return true;
  });
}

/// Consumers do not wait for data.
inline bool missing_wait(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.waits, [](const spec::Wait& wait) { return !wait.previous; }) != 0;
  });
}

inline bool missing_dependency(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    const bool is_changed = is_push(task) && !task.deps.empty();
    if (is_changed) task.deps.clear();
    return is_changed;
  });
}

inline bool has_credits(const Schedule& schedule) {
  for (const Task& task : schedule.tasks)
    for (const spec::Wait& wait : task.waits)
      if (wait.previous) return true;
  return false;
}

/// With one buffer in place of two only the credits protect it.
inline void one_buffer(Schedule& schedule) {
  if (!has_credits(schedule)) return;
  for (spec::Buffer& buffer : schedule.buffers) buffer.depth = 1;
}

inline bool skipped_credit(Schedule& schedule) {
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.waits, [](const spec::Wait& wait) { return wait.previous; }) != 0;
  });
}

inline bool missing_credit(Schedule& schedule) {
  if (!has_credits(schedule)) return false;
  return change_tasks(schedule, [](Task& task) {
    return std::erase_if(task.sets,
                         [](const spec::Set& set) { return set.signal.find("credit") != set.signal.npos; }) != 0;
  });
}

inline bool nothing(Schedule&) { return true; }
inline void as_is(Schedule&) {}

struct Mutation {
  const char* name;
  Mutate mutate;
  void (*prepare)(Schedule&);  // of the schedule before it is broken
  const char* code;            // of the static check that finds it; "": none can
  bool drops_fences = false;
  int64_t timeout_ms = 10000;
};

inline const Mutation kMutations[] = {
    {"dropped_fence", nothing, as_is, "", true},          {"early_signal", early_signal, as_is, "S5"},
    {"swapped_flags", swapped_flags, as_is, "S5"},        {"missing_signal", missing_signal, as_is, "S4", false, 150},
    {"missing_wait", missing_wait, as_is, "S5"},          {"missing_dependency", missing_dependency, as_is, "S5"},
    {"skipped_credit", skipped_credit, one_buffer, "S6"}, {"missing_credit", missing_credit, one_buffer, "S4"},
};

/// Codes of the errors that the static checks find.
inline std::string checks(const Schedule& schedule) {
  std::set<std::string> codes;
  for (const spec::Finding& finding : spec::check(schedule, spec::Machine{}).findings)
    if (finding.is_error) codes.insert(finding.code);
  std::string text;
  for (const std::string& code : codes) text += (text.empty() ? "" : " ") + code;
  return text;
}

/// One seed of the adversary: the first thing that any rank says or throws, "" if nothing was wrong. `body` gives what
/// its rank has to say. A data race to a thread sanitizer.
inline std::string run_mutant(int ranks, const Mutation& mutation, uint64_t seed,
                              const std::function<std::string(Runtime&)>& body) {
  RankOptions options;
  options.timeout_ms = mutation.timeout_ms;
  options.adversary = AdversaryOptions::parse("delay_us=200,seed=" + std::to_string(seed));
  std::mutex mutex;
  std::string first;
  run_bootstraps(ranks, Mode::threads_adversary, [&](Bootstrap& bootstrap) {
    Runtime runtime = Runtime::open(bootstrap, runtime_options(Mode::threads_adversary, options));
    std::string said;
    try {
      said = body(runtime);
      if (said.empty()) return runtime.close();
      runtime.abort(Errc::aborted, "caught");
    } catch (const Error& error) {
      said = error.what();
    }
    const std::lock_guard lock(mutex);
    if (first.empty()) first = said;
  });
  return first;
}

}  // namespace overlace::test
