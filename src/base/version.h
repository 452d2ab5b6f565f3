// Version of the library, the command line and the Python package; cmake/overlace_version.cmake writes the unit.
#pragma once

namespace overlace::base {

/// "0.1.0" of a release, else "0.1.0.dev12+g9b9a7870d1f2", with ".dirty" where files were changed.
const char* version();

/// "9b9a7870d1f2", with "-dirty" where files were changed; "": unknown.
const char* commit();

}  // namespace overlace::base
