// wanted: incompatible pointer type
// Handles of the C API are distinct types.
#include "overlace/capi.h"

int f(ovl_team* team, ovl_channel* channel) {
#ifdef FIXED
  (void)team;
  return ovl_barrier(channel);
#else
  (void)channel;
  return ovl_barrier(team);
#endif
}
