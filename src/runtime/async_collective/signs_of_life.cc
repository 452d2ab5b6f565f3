#include "src/runtime/async_collective/signs_of_life.h"

#include <algorithm>

#include "src/runtime/hash.h"
#include "src/spec/layout_pod.h"

namespace overlace::runtime {
namespace {

constexpr uint32_t kQuestion = 0x5101, kAnswer = 0x5102;  // Tag::kind
constexpr std::chrono::milliseconds kLook(20);

uint64_t group() {
  static const uint64_t number = hash_text("async_collective.signs_of_life");
  return number;
}

}  // namespace

SignsOfLife::SignsOfLife(Control& control) : control_(control), num_heard_(static_cast<size_t>(control.size())) {
  thread_ = std::thread([this] { answer(); });
}

SignsOfLife::~SignsOfLife() {
  is_stopped_ = true;
  thread_.join();
}

void SignsOfLife::answer() {
  for (; !is_stopped_; std::this_thread::sleep_for(kLook))
    for (int peer = 0; peer < control_.size(); ++peer)
      if (peer != control_.rank()) answer(peer);
}

/// An abort is no reason to be silent: others may still ask which rank was its cause.
void SignsOfLife::answer(int peer) {
  uint32_t& heard = num_heard_[static_cast<size_t>(peer)];
  for (; control_.has_arrived(peer, {group(), kQuestion, heard + 1}); ++heard) {
    (void)control_.receive(peer, {group(), kQuestion, heard + 1}, 0, "a question");
    (void)control_.send(peer, {group(), kAnswer, heard + 1}, {});
  }
}

std::vector<int> SignsOfLife::missing() {
  const std::lock_guard lock(asking_);
  const uint32_t number = ++num_asked_;
  std::vector<int> silent = control_.all_ranks();
  std::erase(silent, control_.rank());
  for (const int peer : silent) (void)control_.send(peer, {group(), kQuestion, number}, {});
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (true) {
    // Who has aborted or left has said so.
    std::erase_if(silent, [&](int peer) {
      return control_.has_arrived(peer, {group(), kAnswer, number}) ||
             control_.peer_state(peer) != rank_state_name(RankState::alive);
    });
    if (silent.empty() || std::chrono::steady_clock::now() >= end) return silent;
    std::this_thread::sleep_for(kLook / 2);
  }
}

std::string SignsOfLife::missing_text() {
  std::string text;
  for (const int peer : missing()) text += (text.empty() ? "; no sign of life: rank " : ", ") + std::to_string(peer);
  return text;
}

}  // namespace overlace::runtime
