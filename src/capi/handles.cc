#include "src/capi/handles.h"

#include <pthread.h>

#include "src/base/version.h"

namespace overlace::capi {
namespace {

thread_local std::string last_error;
/// Where even the message could not be kept.
thread_local const char* last_resort = nullptr;

static_assert(OVL_CLOSED == static_cast<int>(Errc::closed) && OVL_CAPTURE == static_cast<int>(Errc::capture) &&
              OVL_TIMEOUT == static_cast<int>(Errc::timeout) && OVL_IO == static_cast<int>(Errc::io) &&
              OVL_CUDA == static_cast<int>(Errc::cuda) && OVL_INTERNAL == static_cast<int>(Errc::internal));

}  // namespace

Registry& Registry::instance() {
  // Never destroyed: runtimes that nobody closed tell their peers at exit. A fork must not leave it locked in the
  // child.
  static Registry* const registry = [] {
    pthread_atfork([] { instance().mutex_.lock(); }, [] { instance().mutex_.unlock(); },
                   [] { instance().mutex_.unlock(); });
    return new Registry;
  }();
  return *registry;
}

uint64_t Registry::add(std::shared_ptr<Object> object, std::string_view kind) {
  const std::lock_guard lock(mutex_);
  table_[next_] = {std::move(object), kind};
  return next_++;
}

base::Result<std::shared_ptr<Object>> Registry::find(const Argument& argument, const void* handle,
                                                     std::string_view kind) {
  if (handle == nullptr)
    return base::invalid_argument("{}: {} is null, wanted a {}", argument.call, argument.name, kind);
  const std::lock_guard lock(mutex_);
  const auto it = table_.find(number_of(handle));
  if (it == table_.end()) {
    if (number_of(handle) < next_)
      return base::error(Errc::closed, "{}: {} was closed before this call", argument.call, argument.name);
    return base::invalid_argument("{}: {} is no handle of overlace, wanted a {}", argument.call, argument.name, kind);
  }
  if (it->second.kind != kind)
    return base::invalid_argument("{}: {} is a {}, wanted a {}", argument.call, argument.name, it->second.kind, kind);
  return it->second.object;
}

void Registry::remove(uint64_t handle) {
  std::shared_ptr<Object> object;  // ends outside the lock
  const std::lock_guard lock(mutex_);
  const auto it = table_.find(handle);
  if (it == table_.end()) return;
  object = std::move(it->second.object);
  table_.erase(it);
}

base::Status Entry::enter(std::string_view call, std::shared_ptr<RuntimeObject> object) {
  std::unique_lock lock(object->busy, std::try_to_lock);
  if (!lock.owns_lock())
    return base::invalid_argument("{}: another thread uses this runtime at the moment, wanted one at a time", call);
  if (!object->runtime) return base::error(Errc::closed, "{}: the runtime was closed before this call", call);
  object_ = std::move(object);
  lock_ = std::move(lock);
  return {};
}

base::Status enter(const Argument& argument, const ovl_runtime* handle, Entry* entry) {
  const base::Result<std::shared_ptr<RuntimeObject>> found = find<RuntimeObject>(argument, handle);
  return found.ok() ? entry->enter(argument.call, *found) : found.status();
}

int fail(const base::Status& status) noexcept {
  last_resort = nullptr;
  try {
    last_error = status.message();
  } catch (...) {
    last_resort = "out of memory, also for the message of this error";
  }
  return static_cast<int>(status.code());
}

int fail_with_current_exception() noexcept {
  try {
    return fail(base::status_of_current_exception());
  } catch (...) {
    last_resort = "out of memory";
    return OVL_OUT_OF_MEMORY;
  }
}

}  // namespace overlace::capi

using overlace::Errc;

int ovl_api_version(void) { return OVL_API_VERSION; }

const char* ovl_version(void) { return overlace::base::version(); }

const char* ovl_error_text(void) {
  return overlace::capi::last_resort != nullptr ? overlace::capi::last_resort : overlace::capi::last_error.c_str();
}

const char* ovl_error_name(int code) { return overlace::errc_name(static_cast<Errc>(code)).data(); }

int ovl_exit_code(int code) { return overlace::exit_code(static_cast<Errc>(code)); }
