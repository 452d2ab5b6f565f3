// What a message between heaps of different hosts may claim. Each refusal is of a message that differs in one word from
// one that is accepted.
#include "src/runtime/backend/cpu/net_packet.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "src/runtime/backend/cpu/wire.h"

namespace overlace::runtime::net {
namespace {

constexpr RuntimeLayout kLayout = runtime_layout(4, 64, kSlotPitchCpu, 1 << 16, 4096, 8192);
constexpr uint64_t kHeap = kLayout.total_bytes;

mpi::Head head_of(Arrival::Kind kind) {
  mpi::Head head;
  head.kind = static_cast<uint32_t>(kind);
  return head;
}

/// Two rows of 100 bytes, 300 apart, without the first 40 and the last 10 bytes, and signal 5 of rank 2.
mpi::Head good() {
  mpi::Head head = head_of(Arrival::Kind::add);
  head.words[offset] = kLayout.user.offset + 64;
  head.words[pitch] = 300;
  head.words[row_bytes] = 100;
  head.words[begin_byte] = 40;
  head.words[end_byte] = 190;
  head.words[target] = kLayout.slot_offset(5, 2);
  head.words[value] = 1;
  head.words[bell] = 5 % kBells;
  head.words[id] = 5;
  return head;
}
constexpr size_t kGoodBytes = 150;

mpi::Head good_word() {
  mpi::Head head = head_of(Arrival::Kind::word_release);
  head.words[target] = kHeap - 8;
  head.words[bell] = kAnyBell;
  return head;
}

base::Status check_head(const mpi::Head& head, size_t bytes) {
  const std::vector<char> data(1 << 10, 'x');
  return check_claims({.head = head, .data = data.data(), .bytes = bytes}, kLayout, kHeap);
}

TEST(NetPacket, WhatRanksSendIsAccepted) {
  EXPECT_TRUE(check_head(good(), kGoodBytes).ok()) << check_head(good(), kGoodBytes).message();
  EXPECT_TRUE(check_head(good_word(), 0).ok()) << check_head(good_word(), 0).message();
  EXPECT_TRUE(check_head(head_of(Arrival::Kind::none), 0).ok());
  mpi::Head last = good();
  last.words[offset] = kHeap - 400;
  EXPECT_TRUE(check_head(last, kGoodBytes).ok()) << "up to the last byte";
  mpi::Head part = good();  // one row of it, beyond which nothing is written
  part.words[offset] = kHeap - 90;
  part.words[end_byte] = 90;
  EXPECT_TRUE(check_head(part, 50).ok()) << check_head(part, 50).message();
  mpi::Head staged = good();
  staged.words[offset] = kLayout.staging.offset;
  EXPECT_TRUE(check_head(staged, kGoodBytes).ok());
  mpi::Head question;
  question.kind = kAsk;
  EXPECT_TRUE(check_head(question, 0).ok());
}

struct Lie {
  const char* name;
  std::function<void(mpi::Head&)> tell;
  const char* words;  // part of the refusal
  size_t bytes = kGoodBytes;
};

TEST(NetPacket, EveryLieIsRefusedWithTheClaim) {
  constexpr uint64_t kMost = ~uint64_t{0};
  const auto set = [](size_t word, uint64_t to) { return [=](mpi::Head& head) { head.words[word] = to; }; };
  const Lie lies[] = {
      {"kind", [](mpi::Head& head) { head.kind = 57; }, "a message of kind 57"},
      {"rows of nothing", set(row_bytes, 0), "rows of 0 bytes"},
      {"less than it says", [](mpi::Head&) {}, "a message of 149 bytes claims bytes 40 to 190", 149},
      {"more than it says", [](mpi::Head&) {}, "a message of 151 bytes", 151},
      {"end before begin", set(begin_byte, 191), "claims bytes 191 to 190"},
      {"control block", set(offset, 0), "a put to offset 0 of rows 0 to 1"},
      {"slots", set(offset, kLayout.slots.offset), "wanted all of them in bytes"},
      {"end of the heap", set(offset, kHeap - 389), "wanted all of them in bytes"},
      {"beyond it", set(offset, kHeap + 4096), "wanted all of them in bytes"},
      {"offset that wraps", set(offset, kMost - 20), "wanted all of them in bytes"},
      {"pitch that wraps", set(pitch, kMost), "wanted all of them in bytes"},
      {"pitch beyond the heap", set(pitch, kHeap), "wanted all of them in bytes"},
      {"id", set(id, kLayout.num_ids), "signal 64, wanted one below 64"},
      {"id above 32 bits", set(id, (uint64_t{1} << 32) | 5), "wanted one below 64"},
      {"slot of another id", set(target, kLayout.slot_offset(6, 0)), "wanted a slot of it"},
      {"slot before", set(target, kLayout.slot_offset(4, 3)), "wanted a slot of it"},
      {"between slots", set(target, kLayout.slot_offset(5, 2) + 8), "wanted a slot of it"},
      {"slot in the control block", set(target, 0), "wanted a slot of it"},
      {"bell", set(bell, kAnyBell + 1), "bell 17, wanted 0 to 16"},
      {"bell above 32 bits", set(bell, uint64_t{1} << 32), "wanted 0 to 16"},
  };
  for (const Lie& lie : lies) {
    mpi::Head head = good();
    lie.tell(head);
    const base::Status status = check_head(head, lie.bytes);
    EXPECT_EQ(status.code(), Errc::engine) << lie.name;
    EXPECT_NE(status.message().find(lie.words), std::string::npos) << lie.name << ": " << status.message();
  }
}

TEST(NetPacket, AHeapThatHasGrownTakesMore) {
  mpi::Head head = good();
  head.words[offset] = kHeap;
  const std::vector<char> data(kGoodBytes, 'x');
  const mpi::Message message{.head = head, .data = data.data(), .bytes = kGoodBytes};
  EXPECT_EQ(check_claims(message, kLayout, kHeap + 399).code(), Errc::engine);
  EXPECT_TRUE(check_claims(message, kLayout, kHeap + 400).ok());
}

TEST(NetPacket, WordsLieInUserSpace) {
  for (const uint64_t at :
       {uint64_t{0}, kLayout.slots.offset, kLayout.user.offset + 4, kHeap - 4, kHeap, ~uint64_t{7}}) {
    mpi::Head head = good_word();
    head.words[target] = at;
    EXPECT_EQ(check_head(head, 0).code(), Errc::engine) << at;
  }
  mpi::Head with_bytes;
  with_bytes.kind = kAnswer;
  EXPECT_EQ(check_head(with_bytes, 8).code(), Errc::engine);
}

}  // namespace
}  // namespace overlace::runtime::net
