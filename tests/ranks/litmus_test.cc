// Ordering rules, each as a program that holds and, with one rule left out, as a broken twin that the adversary must
// catch. A program counts what it saw wrong.
#include <atomic>
#include <cstring>
#include <tuple>
#include <vector>

#include "overlace/handle_pod.h"
#include "tests/ranks/support/run_ranks.h"

namespace overlace::test {
namespace {

constexpr int kEpochs = 150;
constexpr size_t kWords = 96;  // long enough to be split

/// Differs by epoch and index; never the poison.
uint32_t value(int epoch, size_t i) { return static_cast<uint32_t>(epoch) * 1000u + static_cast<uint32_t>(i); }

std::vector<uint32_t> payload(int epoch) {
  std::vector<uint32_t> data(kWords);
  for (size_t i = 0; i < kWords; ++i) data[i] = value(epoch, i);
  return data;
}

int count_wrong(const void* memory, int epoch) {
  std::vector<uint32_t> seen(kWords);
  std::memcpy(seen.data(), memory, kWords * sizeof(uint32_t));
  int wrong = 0;
  for (size_t i = 0; i < kWords; ++i) wrong += seen[i] != value(epoch, i);
  return wrong;
}

/// Rank 0 writes to rank 1, which answers.
struct Pair {
  explicit Pair(Runtime& runtime)
      : team(runtime.world()),
        owner(team.channel(StreamRef::cpu())),
        channel(owner.pod()),
        data(owner.ids(1, Domain::cpu, "litmus.data").first),
        credit(owner.ids(1, Domain::cpu, "litmus.credit").first),
        inbox(runtime.heap().alloc(4 * kWords * sizeof(uint32_t), 256, "inbox")),
        words(runtime.heap().alloc(256, 256, "words")),
        mine(static_cast<char*>(team.local_ptr(inbox))) {
    std::memset(team.local_ptr(words), 0, words.bytes);
    team.barrier();
  }
  bool is_writer() const { return team.rank() == 0; }
  bool wait(uint32_t id, int from, uint64_t delta = 1) {
    const bool is_ok = wait_ge(channel, from, id, ticket(channel, from, id) + delta) == Errc::ok;
    if (is_ok) consume(channel, from, id, delta);
    return is_ok;
  }
  Team& team;
  Channel& owner;
  const ChannelPod channel;
  const uint32_t data, credit;
  const SymBuffer inbox, words;
  char* const mine;
};

constexpr size_t kBytes = kWords * sizeof(uint32_t);

/// put; fence; signal_add. Broken: no fence.
int fenced_signal(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    if (pair.is_writer()) {
      const std::vector<uint32_t> source = payload(epoch);
      put(pair.channel, 1, pair.inbox.offset, source.data(), kBytes);
      if (!is_broken) fence(pair.channel, 1);
      signal_add(pair.channel, 1, pair.data);
      if (!pair.wait(pair.credit, 1) || flush(pair.channel) != Errc::ok) break;
    } else {
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

/// The signal of a put covers that put. Broken: it is taken for an earlier put too.
int weak_signal(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    if (pair.is_writer()) {
      const std::vector<uint32_t> source = payload(epoch);
      if (is_broken) put(pair.channel, 1, pair.inbox.offset, source.data(), kBytes);
      if (!is_broken) put_signal(pair.channel, 1, pair.inbox.offset, source.data(), kBytes, pair.data);
      put_signal(pair.channel, 1, pair.inbox.offset + kBytes, source.data(), kBytes, pair.data, 3);
      if (!pair.wait(pair.credit, 1) || flush(pair.channel) != Errc::ok) break;
    } else {
      if (!pair.wait(pair.data, 0, is_broken ? 3 : 4)) break;
      wrong += count_wrong(pair.mine, epoch) + count_wrong(pair.mine + kBytes, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

/// A word carries its own value; as a release after a fence it covers a put. Broken: a plain word.
int words(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    const uint64_t word = (uint64_t(epoch) << 32) | value(epoch, 7);
    if (pair.is_writer()) {
      const std::vector<uint32_t> source = payload(epoch);
      put(pair.channel, 1, pair.inbox.offset, source.data(), kBytes);
      fence(pair.channel, 1);
      if (is_broken)
        put_word(pair.channel, 1, pair.words.offset, word);
      else
        put_word_release(pair.channel, 1, pair.words.offset, word);
      if (!pair.wait(pair.credit, 1) || flush(pair.channel) != Errc::ok) break;
    } else {
      uint32_t low = 0;
      if (wait_word(pair.channel, pair.words.offset, static_cast<uint32_t>(epoch), &low) != Errc::ok) break;
      if (wait_word_ge(pair.channel, pair.words.offset, word) != Errc::ok) break;
      wrong += count_wrong(pair.mine, epoch) + (low != value(epoch, 7));
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

/// A source is written again after flush. Broken: at once.
int reuse_with_flush(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  std::vector<uint32_t> source;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    if (pair.is_writer()) {
      const std::vector<uint32_t> next = payload(epoch);
      source.resize(kWords);
      std::memcpy(source.data(), next.data(), kBytes);
      put_signal(pair.channel, 1, pair.inbox.offset, source.data(), kBytes, pair.data);
      if (!is_broken && flush(pair.channel) != Errc::ok) break;
      std::memset(source.data(), 0, kBytes);
      if (!pair.wait(pair.credit, 1) || flush(pair.channel) != Errc::ok) break;
    } else {
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

/// Two inboxes in turn, each written again after its credit, of two epochs ago. Broken: without waiting for it.
int reuse_with_credit(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  std::vector<std::vector<uint32_t>> sources;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) sources.push_back(payload(epoch));
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    const size_t place = static_cast<size_t>(epoch % 2) * kBytes;
    if (pair.is_writer()) {
      if (epoch > 2 && !is_broken && !pair.wait(pair.credit, 1)) break;
      // NOTE: two puts are on their way and one signal counts them: only a fence tells which has come.
      put(pair.channel, 1, pair.inbox.offset + place, sources[static_cast<size_t>(epoch - 1)].data(), kBytes);
      fence(pair.channel, 1);
      signal_add(pair.channel, 1, pair.data);
    } else {
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine + place, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  if (pair.is_writer() && flush(pair.channel) == Errc::ok) pair.wait(pair.credit, 1, is_broken ? kEpochs : 2);
  return wrong;
}

/// Puts on their way that one signal counts, each behind a fence. Broken: put_signal, whose add of the second put may
/// be taken for the first.
int counted_puts(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    if (pair.is_writer()) {
      const std::vector<uint32_t> source = payload(epoch);
      for (uint64_t place : {uint64_t{0}, uint64_t{kBytes}}) {
        if (is_broken) {
          put_signal(pair.channel, 1, pair.inbox.offset + place, source.data(), kBytes, pair.data);
          continue;
        }
        put(pair.channel, 1, pair.inbox.offset + place, source.data(), kBytes);
        fence(pair.channel, 1);
        signal_add(pair.channel, 1, pair.data);
      }
      if (!pair.wait(pair.credit, 1) || flush(pair.channel) != Errc::ok) break;
    } else {
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine, epoch);
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine + kBytes, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

/// Direct stores through peer_ptr, released by a bare signal. Broken: the reader does not wait.
int direct_stores(Runtime& runtime, bool is_broken) {
  Pair pair(runtime);
  int wrong = 0;
  for (int epoch = 1; epoch <= kEpochs; ++epoch) {
    if (pair.is_writer()) {
      const std::vector<uint32_t> source = payload(epoch);
      std::memcpy(pair.team.peer_ptr(pair.inbox, 1), source.data(), kBytes);
      signal_add(pair.channel, 1, pair.data);
      if (!pair.wait(pair.credit, 1)) break;
    } else {
      if (is_broken) wrong += count_wrong(pair.mine, epoch);
      if (!pair.wait(pair.data, 0)) break;
      wrong += count_wrong(pair.mine, epoch);
      signal_add(pair.channel, 0, pair.credit);
    }
  }
  return wrong;
}

struct Litmus {
  const char* name;
  int (*program)(Runtime&, bool is_broken);
};
const Litmus kLitmus[] = {{"fenced_signal", fenced_signal},
                          {"weak_signal", weak_signal},
                          {"words", words},
                          {"reuse_with_flush", reuse_with_flush},
                          {"reuse_with_credit", reuse_with_credit},
                          {"direct_stores", direct_stores},
                          {"counted_puts", counted_puts}};

class LitmusTest : public testing::TestWithParam<std::tuple<Litmus, Mode>> {};

TEST_P(LitmusTest, Holds) {
  const auto [litmus, mode] = GetParam();
  const auto body = [litmus = litmus](Runtime& runtime) {
    EXPECT_EQ(litmus.program(runtime, false), 0) << litmus.name << " saw words that were not there yet";
  };
  run_ranks(2, mode, body, {.min_seeds = 10});
}

TEST_P(LitmusTest, BrokenTwinIsCaught) {
  const auto [litmus, mode] = GetParam();
  if (mode != Mode::threads_adversary) GTEST_SKIP() << "only the adversary promises to catch it";
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the broken twins are data races";
#endif
  std::atomic<int> wrong{0};
  const auto body = [&, litmus = litmus](Runtime& runtime) { wrong += litmus.program(runtime, true); };
  for (int round = 0; round < 20 && wrong == 0; ++round) run_ranks(2, mode, body, {.max_seeds = 1});
  EXPECT_GT(wrong, 0) << litmus.name << " without its rule was never wrong";
}

INSTANTIATE_TEST_SUITE_P(Rules, LitmusTest,
                         testing::Combine(testing::ValuesIn(kLitmus), testing::ValuesIn(all_modes())),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param).name) + "_" + mode_name(std::get<1>(test.param));
                         });

}  // namespace
}  // namespace overlace::test
