// A message between the heaps of ranks on different hosts: what is believed is written into a heap of that layout, and
// nowhere else. The first 16 bytes of the input are kind and seed, then the words of the head, then the payload.
// Sources: src/runtime/backend/cpu/net_packet src/runtime/backend/cpu/net
#include <cstring>
#include <vector>

#include "src/runtime/backend/cpu/net_packet.h"
#include "src/runtime/backend/cpu/wire.h"
#include "tests/fuzz/fuzz.h"

namespace overlace::fuzz {

void run(std::string_view input) {
  constexpr RuntimeLayout kLayout = runtime_layout(3, 16, kSlotPitchCpu, 4096, 4096, 4096);
  namespace net = runtime::net;
  runtime::mpi::Head head;
  constexpr size_t kHead = 2 * sizeof(uint64_t) + sizeof head.words;
  if (input.size() < kHead) return;
  std::memcpy(&head.kind, input.data(), sizeof head.kind);
  std::memcpy(head.words.data(), input.data() + 2 * sizeof(uint64_t), sizeof head.words);
  // Offsets of which most are near to something.
  head.words[net::offset] += input[8] % 2 == 0 ? kLayout.staging.offset : 0;
  head.words[net::target] +=
      input[9] % 2 == 0 ? kLayout.slot_offset(static_cast<uint32_t>(head.words[net::id] % 16), 0) : kLayout.user.offset;
  const std::string_view payload = input.substr(kHead);
  const runtime::mpi::Message message{.head = head, .data = payload.data(), .bytes = payload.size()};
  if (!net::check_claims(message, kLayout, kLayout.total_bytes).ok()) return;
  std::vector<char> heap(kLayout.total_bytes);
  if (head.kind == net::kAsk || head.kind == net::kAnswer) return;
  net::store_payload(message, heap.data());
  for (uint64_t at = 0; at < kLayout.staging.offset; ++at) FUZZ_REQUIRE(heap[at] == 0);
  const auto kind = static_cast<runtime::Arrival::Kind>(head.kind);
  if (kind == runtime::Arrival::Kind::none) return;
  const uint64_t target = head.words[net::target];
  FUZZ_REQUIRE(target >= kLayout.slots.offset && target + sizeof(uint64_t) <= heap.size() && target % 8 == 0);
  FUZZ_REQUIRE(head.words[net::bell] <= runtime::kAnyBell);
}

}  // namespace overlace::fuzz
