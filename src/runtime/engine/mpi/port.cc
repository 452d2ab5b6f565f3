#include "src/runtime/engine/mpi/port.h"

#include <algorithm>
#include <atomic>
#include <utility>

namespace overlace::runtime::mpi {

Port::Port(Service& service, uint64_t context, std::vector<int> members, std::function<void()> wake)
    : service_(service),
      context_(context),
      members_(std::move(members)),
      wake_(std::move(wake)),
      arrived_(members_.size()),
      boxes_(members_.size()) {
  for (size_t i = 0; i < members_.size(); ++i) unsent_.push_back(std::make_shared<std::atomic<uint64_t>>(0));
  const auto take = [this](int from, const Message& message) {
    const auto member = std::find(members_.begin(), members_.end(), from);
    if (member == members_.end()) return;
    const auto index = static_cast<size_t>(member - members_.begin());
    {
      const std::lock_guard lock(mutex_);
      boxes_[index].push_back({message.head, {message.data, message.data + message.bytes}});
    }
    std::atomic_ref(arrived_[index]).fetch_add(1, std::memory_order_release);
    wake_();
  };
  const auto fail = [this](const base::Status& why) {
    {
      const std::lock_guard lock(mutex_);
      failure_ = why;
    }
    wake_();
  };
  service_.listen(context_, {take, fail, wake_});
}

Port::~Port() { service_.forget(context_); }

void Port::send(size_t member, Head head, const void* data, size_t bytes) {
  head.context = context_;
  service_.send(members_[member], head, {{static_cast<const char*>(data), bytes}}, unsent_[member]);
}

bool Port::has(size_t member) const {
  const std::lock_guard lock(mutex_);
  return !boxes_[member].empty();
}

Port::Letter Port::take(size_t member) {
  const std::lock_guard lock(mutex_);
  Letter letter = std::move(boxes_[member].front());
  boxes_[member].pop_front();
  return letter;
}

base::Status Port::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace overlace::runtime::mpi
