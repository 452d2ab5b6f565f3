// A ChannelPod as words: each field of the struct at its place.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "overlace/capi_words.h"
#include "overlace/handle_pod.h"

namespace overlace {
namespace {

template <class T>
T* address(uintptr_t value) {
  return reinterpret_cast<T*>(value);
}

/// A different value in each field.
ChannelPod pod_of(int size) {
  ChannelPod pod{};
  TeamPod& team = pod.team;
  team.rank = 1;
  team.size = size;
  for (int peer = 0; peer < kPodPeers; ++peer) team.heap[peer] = address<char>(0x7f0000000000u + 4096u * peer);
  team.sig_off = uint64_t{1} << 40;
  team.sig_pitch = 32;
  team.sig_stride = 11;
  team.num_ids = 4096;
  team.caps = 5;
  team.team_id = 6;
  team.sent = address<uint64_t>(0x7f1000000000u);
  team.ticket = address<uint64_t>(0x7f2000000000u);
  team.abort_word = address<uint32_t>(0x7f3000000000u);
  team.record = address<TimeoutRecord>(0x7f4000000000u);
  team.timeout_ns = 300'000'000'000u;
  team.claim = address<uint32_t>(0x7f5000000000u);
  pod.channel_id = 7;
  pod.barrier_id = 8;
  return pod;
}

void expect_words(const ChannelPod& pod, char* const* bases) {
  const TeamPod& team = pod.team;
  std::vector<int64_t> words(static_cast<size_t>(OVL_WORD_BASES + team.size));
  ASSERT_EQ(ovl_handle_words(&pod, sizeof pod, 9, words.data(), static_cast<uint32_t>(words.size())), OVL_OK)
      << ovl_error_text();
  const auto word = [](const auto* pointer) { return static_cast<int64_t>(reinterpret_cast<intptr_t>(pointer)); };
  EXPECT_EQ(words[OVL_WORD_RANK], team.rank);
  EXPECT_EQ(words[OVL_WORD_SIZE], team.size);
  EXPECT_EQ(words[OVL_WORD_SLOTS], static_cast<int64_t>(team.sig_off));
  EXPECT_EQ(words[OVL_WORD_SLOT_PITCH], team.sig_pitch);
  EXPECT_EQ(words[OVL_WORD_SLOT_STRIDE], team.sig_stride);
  EXPECT_EQ(words[OVL_WORD_NUM_IDS], team.num_ids);
  EXPECT_EQ(words[OVL_WORD_CAPS], team.caps);
  EXPECT_EQ(words[OVL_WORD_TEAM_ID], team.team_id);
  EXPECT_EQ(words[OVL_WORD_SENT], word(team.sent));
  EXPECT_EQ(words[OVL_WORD_TICKETS], word(team.ticket));
  EXPECT_EQ(words[OVL_WORD_ABORT_WORD], word(team.abort_word));
  EXPECT_EQ(words[OVL_WORD_RECORD], word(team.record));
  EXPECT_EQ(words[OVL_WORD_TIMEOUT_NS], static_cast<int64_t>(team.timeout_ns));
  EXPECT_EQ(words[OVL_WORD_CLAIM], word(team.claim));
  EXPECT_EQ(words[OVL_WORD_CHANNEL_ID], pod.channel_id);
  EXPECT_EQ(words[OVL_WORD_BARRIER_ID], pod.barrier_id);
  EXPECT_EQ(words[OVL_WORD_FIRST_ID], 9);
  for (int peer = 0; peer < team.size; ++peer) EXPECT_EQ(words[OVL_WORD_BASES + peer], word(bases[peer])) << peer;
}

TEST(HandleWords, HaveEachFieldOfTheStruct) {
  const ChannelPod pod = pod_of(3);
  expect_words(pod, pod.team.heap);
}

TEST(HandleWords, TakeBasesOfLargeTeamsFromTheirTable) {
  std::array<char*, kPodPeers + 3> bases{};
  for (size_t i = 0; i < bases.size(); ++i) bases[i] = address<char>(0x7f6000000000u + 4096u * i);
  ChannelPod pod = pod_of(static_cast<int>(bases.size()));
  pod.team.heap_more = bases.data();
  expect_words(pod, bases.data());
}

}  // namespace
}  // namespace overlace
