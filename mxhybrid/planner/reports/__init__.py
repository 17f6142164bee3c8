"""Reports of a prediction: tables, a summary of the bottlenecks, diagrams, timelines."""
