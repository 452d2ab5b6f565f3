// Controls of what plays CUDA's runtime (cuda.cc, part of the test) and NCCL (library.cc, a libnccl.so.2 of its own
// that the engine finds as it finds NCCL): ranks are threads, each with a communicator of a real meeting, and no byte
// moves.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <functional>
#include <string>
#include <vector>

namespace overlace::test::nccl {

/// Work on a stream: true once it is done. Asked by whoever looks at the stream.
using Work = std::function<bool()>;

/// Any thread.
namespace cuda {
void enqueue(cudaStream_t stream, Work work);
/// The `nth` call of this name by this thread from now on fails.
void fail(const std::string& call, int nth = 1);
/// The next call of this name by any thread fails.
void fail_anywhere(const std::string& call);
/// From here on the stream is captured; what runs at its end belongs to the graph until that is destroyed.
void begin_capture(cudaStream_t stream);
cudaGraph_t end_capture(cudaStream_t stream);
void destroy(cudaGraph_t graph);
/// Streams, events and memory that nobody has given back.
int alive();
/// Whose attributes were asked for; of the one thread that does.
std::vector<const void*>& asked_kernels();
}  // namespace cuda

struct Fault {
  enum class Kind {
    fails,       // with `code`, and does nothing
    fails_late,  // with `code`, and does what it does
    hangs,       // until its communicator is aborted (then it fails with `code`) or the library is released
    reports,     // does what it does; from then on the communicator reports `code`
  };
  std::string call;
  int rank = 0;
  int nth = 1;  // call of this name of that rank from now on
  Kind kind = Kind::fails;
  ncclResult_t code = ncclSystemError;
};

/// Counts of communicators; each is destroyed or aborted once, or leaked.
struct Counts {
  int opened = 0, destroyed = 0, aborted = 0;
};

/// What the library exports beside NCCL's functions.
class Library {
 public:
  virtual ~Library() = default;
  /// Forgets all; every communicator must be gone, or nobody may use it any more.
  virtual void reset() = 0;
  /// Where collectives are put; without it they are done at once.
  virtual void set_streams(void (*enqueue)(cudaStream_t, Work)) = 0;
  virtual void set_version(int version) = 0;
  /// Does what NCCL_COMM_BLOCKING does: 0 or 1 of all communicators, -1 what each was made with.
  virtual void set_blocking(int blocking) = 0;
  /// The rank of the calling thread, for calls without a communicator.
  virtual void set_rank(int rank) = 0;
  virtual void add(const Fault& fault) = 0;
  /// Faults that have not happened.
  virtual int faults_left() = 0;
  virtual void reset_faults() = 0;
  /// Ends what hangs, and what will.
  virtual void release() = 0;
  virtual Counts counts() = 0;
  /// Calls under way in any thread.
  virtual int running() = 0;
  /// The depth of NCCL's group that the calling thread is in.
  virtual int group_depth() = 0;
  /// What NCCL would take amiss or crash of, in words: dead communicators, calls out of place.
  virtual std::vector<std::string> misuses() = 0;
};

}  // namespace overlace::test::nccl

extern "C" overlace::test::nccl::Library* overlace_test_nccl();
