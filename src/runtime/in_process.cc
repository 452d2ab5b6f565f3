#include "src/runtime/in_process.h"

#include <map>
#include <mutex>

namespace overlace::runtime {

std::shared_ptr<void> share_in_process(uint64_t key, const std::function<std::shared_ptr<void>()>& make) {
  static std::mutex mutex;
  static std::map<uint64_t, std::weak_ptr<void>> objects;
  const std::lock_guard lock(mutex);
  std::erase_if(objects, [](const auto& entry) { return entry.second.expired(); });
  std::weak_ptr<void>& entry = objects[key];
  std::shared_ptr<void> object = entry.lock();
  if (!object) entry = object = make();
  return object;
}

}  // namespace overlace::runtime
