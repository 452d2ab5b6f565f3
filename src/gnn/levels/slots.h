// Which slots of the CPU cache keep their rows: policies over slots and times, which know no vertices.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "overlace/gnn.h"

namespace overlace::gnn {

/// "none", "static", "lru", "belady".
const char* name_of(CachePolicy policy);

/// All slots are full, always. `next` is the time of a row's next use, which some policies ignore.
class SlotPolicy {
 public:
  virtual ~SlotPolicy() = default;
  /// Begins anew: slot s holds a row whose next use is next[s]; times lie below end_time or are kNeverUsed.
  virtual void begin(std::span<const uint32_t> next, uint32_t end_time) = 0;
  /// The row of a slot is used now, and then at `next`.
  virtual void touch(uint32_t slot, uint32_t next) = 0;
  /// A row that is in no slot is used now, and then at `next`: the slot it takes over, if it should.
  virtual std::optional<uint32_t> offer(uint32_t next) = 0;
};

/// belady: keeps what is needed soonest; a row comes in only if one leaves that is needed later. lru: each row comes in
/// and the one used longest ago leaves. Others: nothing ever changes.
std::unique_ptr<SlotPolicy> make_slot_policy(CachePolicy policy);

}  // namespace overlace::gnn
