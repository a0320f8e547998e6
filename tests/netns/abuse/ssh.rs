//! SSH: names, files and hosts that try to run commands here or to write to the terminal.
