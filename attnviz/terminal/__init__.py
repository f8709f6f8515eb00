"""What all commands share: options, input checks, console output."""
