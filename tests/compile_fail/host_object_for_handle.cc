// wanted: cannot convert|invalid initialization of reference|no matching function
// Agents take the plain handle (pod), which may travel to a kernel, not the host object that owns.
#include "overlace/signal.h"

void f(overlace::Channel& channel) {
#ifdef FIXED
  fence(channel.pod(), 1);
#else
  fence(channel, 1);
#endif
}
