// Messages between processes over MPI. One thread per process makes all MPI calls, from MPI_Init to MPI_Finalize, so
// that each wait of a caller has a deadline although MPI's have none.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status.h"

namespace overlace::runtime::mpi {

/// In front of every message. What the words mean is the receiver's and the sender's business.
struct Head {
  static constexpr uint32_t kMagic = 0x0B1ACE04;
  uint32_t magic = kMagic, kind = 0;
  uint64_t context = 0;  // who of the receiver's process gets it
  std::array<uint64_t, 10> words{};
};

struct Message {
  Head head;
  const char* data = nullptr;
  size_t bytes = 0;
};

/// What a context does with its news; all are called by the service's thread, one at a time, and must not block.
struct Listener {
  std::function<void(int from, const Message& message)> take;
  std::function<void(const base::Status& why)> fail;  // MPI failed: nothing more will come
  std::function<void()> sent;                         // MPI has done with a message of the context; may be empty
};

class Service {
 public:
  static constexpr size_t kMaxBytes = size_t{1} << 30;  // of a message

  /// Opens the library and starts MPI at the first call of the process: collective over the job, as MPI_Init is.
  /// not_supported with the reason where there is no plug-in, timeout where other processes do not come.
  static base::Result<Service*> open(int64_t timeout_ms);
  /// "openmpi 4.1.4", or why there is none. Does not start MPI.
  static base::Result<std::string> library();
  virtual ~Service() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string name() const = 0;
  virtual std::string version() const = 0;
  /// Any thread. Parts are copied (at most kMaxBytes together). `unsent` (may be null) counts messages that MPI has not
  /// done with.
  virtual void send(int to, const Head& head, const std::vector<std::pair<const char*, size_t>>& parts,
                    const std::shared_ptr<std::atomic<uint64_t>>& unsent) = 0;
  /// Messages that came before wait for their listener.
  virtual void listen(uint64_t context, Listener listener) = 0;
  /// Once it returns the listener is not called any more; what still comes is dropped.
  virtual void forget(uint64_t context) = 0;
  /// Something failed: at exit MPI_Finalize, which waits for all processes, gets no time to speak of.
  virtual void give_up() = 0;
};

}  // namespace overlace::runtime::mpi
