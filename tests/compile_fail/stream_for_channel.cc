// wanted: (cannot convert|invalid initialization|no matching function)
// An operator is called on a channel, which all ranks opened in the same order; a stream of one rank is not enough.
#include "overlace/ops/gemm_rs.h"

void f(overlace::Channel& channel, const overlace::ops::GemmRsArgs& args, const overlace::spec::Schedule& schedule) {
#ifdef FIXED
  run(channel, args, schedule);
#else
  (void)channel;
  run(overlace::StreamRef::cpu(), args, schedule);
#endif
}
