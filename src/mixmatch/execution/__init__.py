"""Lists of jobs to records."""
