"""The commands of `groundling`, one file each."""
