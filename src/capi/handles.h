// What stands behind the handles of the C API, and how its functions end: with a code and this thread's message.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "overlace/bootstrap.h"
#include "overlace/capi.h"
#include "overlace/capi_tune.h"
#include "overlace/channel.h"
#include "overlace/context.h"
#include "overlace/ops/moe.h"
#include "overlace/runtime.h"
#include "overlace/schedule.h"
#include "overlace/symmetric.h"
#include "overlace/team.h"
#include "overlace/timeline.h"
#include "src/base/status.h"
#include "src/exec/run.h"

namespace overlace::capi {

struct Object {
  virtual ~Object() = default;
};

struct WorldObject : Object {
  static constexpr std::string_view kName = "world";
  std::mutex mutex;
  std::vector<std::unique_ptr<Bootstrap>> bootstraps;  // by rank; null: taken
};

struct RuntimeObject : Object {
  static constexpr std::string_view kName = "runtime";
  std::unique_ptr<Bootstrap> bootstrap;
  std::optional<Runtime> runtime;
  std::optional<Context> context;
  std::mutex busy;                 // held by the one thread that is inside
  std::mutex ending;               // abort() may come from another thread while this ends
  std::vector<uint64_t> children;  // handles that end with this one
};

/// What belongs to a runtime; `owner` is alive while the handle is.
struct Child : Object {
  std::shared_ptr<RuntimeObject> owner;
};
struct TeamObject : Child {
  static constexpr std::string_view kName = "team";
  Team team;
};
struct RegionObject : Child {
  static constexpr std::string_view kName = "region";
  Region region;
};

struct TimelineObject : Child {
  static constexpr std::string_view kName = "timeline";
  std::unique_ptr<Timeline> timeline;
};

/// A schedule and its texts, which callers may hold.
struct ScheduleTexts {
  spec::Schedule schedule;
  const uint64_t serial = next_serial();  // of this process
  std::string reason;
  std::once_flag json_once, text_once;
  std::string json, text;

 private:
  static uint64_t next_serial() {
    static std::atomic<uint64_t> last = 0;
    return ++last;
  }
};
/// What ovl_schedule_choose was asked.
struct Chosen {
  spec::OpSpec op;
  Context context;
  uint64_t heap_bytes = 0;  // that the schedule may take; 0: any number
};
struct ScheduleObject : Object {
  static constexpr std::string_view kName = "schedule";
  std::optional<Chosen> chosen;                       // none: the caller named the schedule
  std::vector<std::unique_ptr<ScheduleTexts>> plans;  // the last one counts: those before need too much heap
  ScheduleTexts& plan() { return *plans.back(); }
  /// Collective, behind an impasse that all ranks know: takes another choice, the same on all of them, which
  /// needs less of the heap where that is `full`, and is the library where the GPU is `taken`. False, on all ranks,
  /// where the caller of one chose, or there is no such choice.
  base::Result<bool> give_way(Channel& channel, std::string_view local_param, exec::Impasse impasse);
  /// Takes the schedule of the peers, which are in the call already; not_supported where this rank's N or K cannot
  /// take it.
  base::Status follow_peers(Channel& channel, std::string_view local_param);
};

/// The schedules of a channel's last problems, cached: a choice that the ranks made together must not be made anew by
/// one alone, so there are more of them than a program meets again.
class CachedSchedules {
 public:
  struct Key {
    spec::OpSpec op;
    std::string plan;
    bool operator==(const Key&) const = default;
  };
  /// Null if there is none of this key.
  std::shared_ptr<ScheduleObject> find(const Key& key);
  void add(Key key, std::shared_ptr<ScheduleObject> schedule);
  /// Forgets all that was added before the context's choices became other ones (Context::generation).
  void follow(uint64_t generation);

 private:
  static constexpr size_t kMost = 4096;
  uint64_t generation_ = 0;
  struct Hash {
    size_t operator()(const Key& key) const;
  };
  using List = std::list<std::pair<Key, std::shared_ptr<ScheduleObject>>>;  // those used last in front
  List list_;
  std::unordered_map<Key, List::iterator, Hash> by_key_;
};
struct ChannelObject : Child {
  static constexpr std::string_view kName = "channel";
  Channel* channel = nullptr;
  std::vector<SignalIds> ids;           // given out by ovl_signal_ids
  CachedSchedules schedules;            // of ovl_run
  std::set<std::string> met;            // by ovl_run, where first uses are measured
  std::deque<std::string> tuned_texts;  // what `tuned` points to
  std::vector<ovl_tuned> tuned;         // given out by ovl_tune
  std::deque<ops::MoeContext> moe_contexts;
};

/// Where a call and its handle are named in messages.
struct Argument {
  std::string_view call, name;
};

/// Handles are numbers that are given once. A handle that ends while a call uses its object ends with that call.
class Registry {
 public:
  uint64_t add(std::shared_ptr<Object> object, std::string_view kind);
  /// closed: it was one once; invalid_argument: it never was, or is something else.
  base::Result<std::shared_ptr<Object>> find(const Argument& argument, const void* handle, std::string_view kind);
  void remove(uint64_t handle);

  static Registry& instance();

 private:
  struct Known {
    std::shared_ptr<Object> object;
    std::string_view kind;
  };
  std::mutex mutex_;
  std::unordered_map<uint64_t, Known> table_;
  uint64_t next_ = 1;
};

inline uint64_t number_of(const void* handle) { return reinterpret_cast<uint64_t>(handle); }

template <class T>
base::Result<std::shared_ptr<T>> find(const Argument& argument, const void* handle) {
  base::Result<std::shared_ptr<Object>> found = Registry::instance().find(argument, handle, T::kName);
  if (!found.ok()) return found.status();
  return std::static_pointer_cast<T>(*found);
}

/// Gives the caller a handle of `object`.
template <class Handle, class T>
void give(std::shared_ptr<T> object, Handle** out) {
  *out = reinterpret_cast<Handle*>(Registry::instance().add(std::move(object), T::kName));
}
/// Gives a handle of what ends with its runtime.
template <class Handle, class T>
void give_child(const std::shared_ptr<RuntimeObject>& owner, std::shared_ptr<T> object, Handle** out) {
  object->owner = owner;
  owner->children.reserve(owner->children.size() + 1);
  give(std::move(object), out);
  owner->children.push_back(number_of(*out));
}

/// A runtime's thread is inside until this goes.
class Entry {
 public:
  Entry() = default;
  base::Status enter(std::string_view call, std::shared_ptr<RuntimeObject> object);
  RuntimeObject& object() const { return *object_; }
  const std::shared_ptr<RuntimeObject>& shared() const { return object_; }
  Runtime& runtime() const { return *object_->runtime; }

 private:
  std::shared_ptr<RuntimeObject> object_;
  std::unique_lock<std::mutex> lock_;
};

/// Finds a handle and enters its runtime.
base::Status enter(const Argument& argument, const ovl_runtime* handle, Entry* entry);
template <class T>
base::Status enter(const Argument& argument, const void* handle, Entry* entry, std::shared_ptr<T>* out) {
  base::Result<std::shared_ptr<T>> found = find<T>(argument, handle);
  if (!found.ok()) return found.status();
  *out = std::move(*found);
  return entry->enter(argument.call, (*out)->owner);
}

inline base::Status check_not_null(const Argument& argument, const void* pointer) {
  return pointer != nullptr ? base::Status()
                            : base::invalid_argument("{}: {} is null, wanted an address", argument.call, argument.name);
}
/// Not null, and of the size that this library knows.
template <class T>
base::Status check_struct(const Argument& argument, const T* pointer) {
  OVERLACE_TRY(check_not_null(argument, pointer));
  if (pointer->struct_size == sizeof(T)) return {};
  return base::error(Errc::version_mismatch, "{}: {}.struct_size is {}, wanted {} (OVL_API_VERSION {})", argument.call,
                     argument.name, pointer->struct_size, sizeof(T), OVL_API_VERSION);
}

/// Options of a runtime, those of the environment where nothing was given.
base::Result<RuntimeOptions> options_of(std::string_view call, const ovl_options* given);
/// Ranks that the caller gathers for.
base::Result<std::unique_ptr<Bootstrap>> bootstrap_of(std::string_view call, const ovl_given* given);

inline base::Status check_activation(const Argument& argument, int32_t value) {
  if (value == OVL_NO_ACTIVATION || value == OVL_SWIGLU) return {};
  return base::invalid_argument("{}: {} is {}, wanted 0 (none) or 1 (swiglu)", argument.call, argument.name, value);
}

/// The schedule of `plan`, as ovl_run takes it, for a problem; kept by the channel.
base::Result<std::shared_ptr<ScheduleObject>> schedule_of(const RuntimeObject& runtime, ChannelObject& channel,
                                                          const spec::OpSpec& op, std::string_view plan);

/// Behind a call that all ranks have made, with OVERLACE_TUNE=first_use: measures what the channel has not met before.
/// `is_chosen`: this rank named no schedule. Where ranks differ in that or in a parameter that may differ, in teams of
/// some of the ranks and with splits nothing is measured, nor while a stream is being captured. Collective; throws as
/// overlace::tune does.
void tune_first_use(const Context& context, ChannelObject& channel, const spec::OpSpec& op, bool is_chosen);

/// Keeps the message for ovl_error_text and gives the code.
int fail(const base::Status& status) noexcept;
int fail_with_current_exception() noexcept;

/// The body of every function of the API: a Status in, a code out.
template <class Body>
int guarded(Body body) noexcept {
  try {
    const base::Status status = body();
    return status.ok() ? OVL_OK : fail(status);
  } catch (...) {
    return fail_with_current_exception();
  }
}

}  // namespace overlace::capi
