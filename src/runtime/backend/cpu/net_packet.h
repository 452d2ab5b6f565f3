// What a message between the heaps of ranks on different hosts says, and whether it may be believed.
#pragma once

#include <cstdint>

#include "src/base/status.h"
#include "src/runtime/engine/mpi/service.h"
#include "src/spec/layout_pod.h"

namespace overlace::runtime::net {

/// kind of a message: an Arrival::Kind (with or without payload), or one of these.
inline constexpr uint32_t kAsk = 100, kAnswer = 101;

/// words of a head.
enum Word { offset, pitch, row_bytes, begin_byte, end_byte, target, value, bell, id, number };

/// Nothing was written yet. What the message claims exists in a heap of this layout with so many bytes: its payload
/// lies in staging or user space, row by row, and is as long as the message; its signal is a slot of an id, its word a
/// word of user space, its bell a bell. engine with the claim and what was wanted.
base::Status check_claims(const mpi::Message& message, const RuntimeLayout& layout, uint64_t heap_bytes);

/// Writes the payload. Precondition: check_claims() for this heap.
void store_payload(const mpi::Message& message, char* heap);

}  // namespace overlace::runtime::net
