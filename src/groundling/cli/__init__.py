"""The subcommands of `groundling`, one module each."""
