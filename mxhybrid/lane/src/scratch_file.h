// A file for the rows of a row store.
#pragma once

#include <string>

namespace lane {

/// Return the descriptor of a new, empty file in a directory, which the caller closes.  The file has lost its name, so it
/// disappears with the process, however that ends.  `role` is a part of the name that the system shows in /proc.
/// Throws std::runtime_error.
int new_scratch_file(const std::string& directory, const std::string& role);

}  // namespace lane
