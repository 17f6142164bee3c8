"""What the planner costs, measured without a job."""
