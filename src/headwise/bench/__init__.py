"""What attention costs, measured side by side with what else there is."""
